"""Whether the service keeps its limits under attack; ``python -m lab.verification.limits``.

Each module measures one kind of attack beside a well-behaved caller, and compares figures with limits.
"""
