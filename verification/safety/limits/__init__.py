"""Whether the service keeps its limits under attack; ``python -m verification.safety.limits``.

Each module measures one kind of attack beside a well-behaved caller, and compares figures with limits.
"""
