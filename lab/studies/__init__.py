"""Measurements of accuracy."""
