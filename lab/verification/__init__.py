"""Safety claims of the service beyond `verification`: each is measured by a program of its own.

Each module runs by itself, for example ``python -m lab.verification.power --quick``, and prints its
figures as a JSON object on its last line. Its exit code is 0 if the claim holds.
"""
