"""Our server next to a bare handler and to others: ``python -m benchmarks.serve``, see `__main__`."""
