"""Linear systems with kernel matrices."""
