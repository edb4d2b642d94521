"""Compares how two servers answer the same bytes, see `__main__`."""
