"""Servers of others, for scores, events and keys of tokens: where they may be, and how they are asked."""
