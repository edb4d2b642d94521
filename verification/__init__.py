"""What guards the product, each by a program of its own that looks for faults."""
