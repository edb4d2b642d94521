"""Creates byte code and compiled kernels during the image build.

Runs the main job in separate processes, as users do, and imports the modules that it does not load. The
variables PYTHONPYCACHEPREFIX and NUMBA_CACHE_DIR choose the folders.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

OTHERS = ("psycopg_binary.pq", "sqlalchemy.dialects.postgresql.psycopg", "alembic.command")
"""Imported by name at run time when the database is PostgreSQL."""
OF_TOKENS = ("app.auth.jwks", "app.auth.tokens")
"""Only an image with the extra oidc can load them."""


def main() -> None:
    """Raises CalledProcessError if the main job fails, and ImportError if a module is missing."""
    subprocess.run(["stms", "demo"], check=True)
    import app
    import core

    for package in (app, core):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            is_missing = module.name in OF_TOKENS and find_spec("jwt") is None
            if not module.name.endswith("__main__") and not is_missing:
                import_module(module.name)
    for name in OTHERS:
        import_module(name)
    sys.stdout.write("Everything could be loaded.\n")


if __name__ == "__main__":
    main()
