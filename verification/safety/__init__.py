"""The safety claims of the service, each measured by a program of its own: ``make verify NAME=safety``.

Each module runs by itself, for example ``python -m verification.safety.power --quick``, and prints its
figures as a JSON object on its last line. Its exit code is 0 if the claim holds.
"""
