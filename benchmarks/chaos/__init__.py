"""The whole service under faults: ``python -m benchmarks.chaos``, see `__main__`."""
