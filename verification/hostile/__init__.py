"""Attacks on a real server, each with the one answer that is right."""
