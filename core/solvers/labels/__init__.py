"""Optimal margin distribution with labels that are unknown: clustering, and few labels among many rows."""
