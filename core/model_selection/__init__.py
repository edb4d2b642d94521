"""Choosing hyper-parameters by cross-validation: of the teacher once, then of each student."""
