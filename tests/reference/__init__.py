"""Solvers against something that we did not write, and what computes the same in another way."""
