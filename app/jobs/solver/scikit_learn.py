"""The import of scikit-learn, which takes a second and which two threads must not do at the same time."""

from __future__ import annotations

import threading

_lock = threading.Lock()


def import_scikit_learn() -> None:
    """Import the parts of scikit-learn that jobs use, or wait until another thread has done so.

    Its modules import each other in a circle. Python lets one of two threads that import such modules go on
    with a module that is only half initialised, and its import then fails.
    """
    with _lock:
        import sklearn.ensemble
        import sklearn.model_selection
        import sklearn.tree  # noqa: F401
