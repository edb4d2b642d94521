"""The whole service under faults: ``python -m verification.chaos``, see `__main__`."""
