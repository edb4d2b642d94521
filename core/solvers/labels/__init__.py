"""Optimal margin distribution with unknown labels: clustering, and few labels among many rows."""
