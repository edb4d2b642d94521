"""Servers of others, which score rows of jobs or receive webhooks: where they may be, how they are asked."""
