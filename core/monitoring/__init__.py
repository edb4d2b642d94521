"""A model after its training: rates and promises in production, versions compared, further classes.

What only counts (``intervals``, ``comparison``, ``sequential``, ``sampling``, ``estimates``, ``thresholds``)
imports no training code.
"""
