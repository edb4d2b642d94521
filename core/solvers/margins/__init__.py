"""Solvers of students whose loss is more than one hinge a row: margin distributions, privileged columns."""
