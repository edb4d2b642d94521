"""A copy of the part of the core that evaluates students, made by ``make client``."""
