"""Training for a performance measure of all rows together: most violated label vectors, cutting planes."""
