"""Chooses hyper-parameters by cross-validation: those of the teacher once, then those of each student."""
