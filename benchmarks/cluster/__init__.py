"""Many workers on PostgreSQL: ``python -m benchmarks.cluster``, see `__main__`."""
