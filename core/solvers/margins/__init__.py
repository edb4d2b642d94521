"""Solvers for students with other losses than one hinge per row: margin distributions, privileged columns."""
