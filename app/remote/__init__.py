"""Servers of others, for scores or for keys of tokens: which are allowed, and how they are asked."""
