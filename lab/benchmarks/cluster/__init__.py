"""Many workers on PostgreSQL: ``python -m lab.benchmarks.cluster``, see `__main__`."""
