"""Teachers and students of other packages: Python modules that the operator names in ``STMS_PLUGINS``.

    STMS_PLUGINS=our_learners,more.learners stms serve

Every process of the service, and the command line, imports these modules when it starts and calls their
``register(teachers, students)`` with the registries of ``core.learners``. Only the environment of the process
names them, never a request or the database: a user who can set it can run any code anyway.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module

from app.domain.errors import SetupError

VARIABLE = "STMS_PLUGINS"


class PluginFailed(SetupError):
    """A module named in STMS_PLUGINS cannot be imported, or has no function ``register``."""


@cache
def load_plugins() -> None:
    """Register the learners of all modules in STMS_PLUGINS, once a process. Raises PluginFailed."""
    names = [part.strip() for part in os.environ.get(VARIABLE, "").split(",") if part.strip()]
    if not names:
        return
    from core.learners import STUDENTS, TEACHERS  # with NumPy, which most commands do not need

    for name in names:
        try:
            register = import_module(name).register
        except (ImportError, AttributeError) as error:
            raise PluginFailed(f"{VARIABLE} names {name!r}, which cannot be loaded: {error}") from error
        register(TEACHERS, STUDENTS)
