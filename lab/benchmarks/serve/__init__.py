"""Our server next to a bare handler and to others: ``python -m lab.benchmarks.serve``, see `__main__`."""
