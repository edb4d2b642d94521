"""Coverage-guided fuzzing of every parser of bytes: ``python -m verification.fuzz``, see `__main__`."""
