"""Functions for a model after training: rates and promises in production, comparisons, further classes.

Modules that only count (``intervals``, ``comparison``, ``sequential``, ``sampling``, ``estimates``,
``thresholds``) import no training code.
"""
