"""Leaves behind what a first run makes: byte code and compiled kernels. Used while the image is built.

Runs the main job in processes of its own, as users will, and loads what it does not touch. Where byte code
and kernels go is said by PYTHONPYCACHEPREFIX and NUMBA_CACHE_DIR.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module

OTHERS = ("psycopg_binary.pq", "sqlalchemy.dialects.postgresql.psycopg", "alembic.command")
"""Loaded by name at run time when the database is PostgreSQL."""


def main() -> None:
    """Raises CalledProcessError when the main job fails, ImportError when something is missing."""
    subprocess.run(["stms", "demo"], check=True)
    import app
    import core

    for package in (app, core):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    for name in OTHERS:
        import_module(name)
    sys.stdout.write("Everything could be loaded.\n")


if __name__ == "__main__":
    main()
