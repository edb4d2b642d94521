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
OF_EXTRAS = {
    "app.auth.jwks": "jwt",
    "app.auth.tokens": "jwt",
    "app.ingest.bundle_signature": "cryptography",
    "app.server.grpc_listener": "grpc",
    "app.serving.open_inference.grpc": "grpc",
}
"""Modules and packages that only an image with an extra can load, and a module of that extra."""


def main() -> None:
    """Raises CalledProcessError if the main job fails, and ImportError if a module is missing."""
    subprocess.run(["stms", "demo"], check=True)
    import app
    import core

    for package in (app, core):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            needed = [extra for name, extra in OF_EXTRAS.items() if module.name.startswith(name)]
            if not module.name.endswith("__main__") and all(map(find_spec, needed)):
                import_module(module.name)
    for name in OTHERS:
        import_module(name)
    sys.stdout.write("Everything could be loaded.\n")


if __name__ == "__main__":
    main()
