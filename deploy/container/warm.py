"""Creates byte code and compiled kernels during the image build.

Runs the main job in separate processes, as users do, and imports the modules that it does not load. An
installation that only serves makes a database instead, and imports what it can. The variables
PYTHONPYCACHEPREFIX and NUMBA_CACHE_DIR choose the folders.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory

OTHERS = ("psycopg_binary.pq", "sqlalchemy.dialects.postgresql.psycopg", "alembic.command")
"""Imported by name at run time when the database is PostgreSQL."""
OF_EXTRAS = {
    "stms.app.auth.jwks": "jwt",
    "stms.app.auth.tokens": "jwt",
    "stms.app.ingest.bundle_signature": "cryptography",
    "stms.app.server.grpc_listener": "grpc",
    "stms.app.serving.open_inference.grpc": "grpc",
}
"""Modules and packages that only an image with an extra can load, and a module of that extra."""


def main() -> None:
    """Raises CalledProcessError if a command fails, and ImportError if a module is missing."""
    serves: bool = import_module("stms.app.domain.installation").only_serves()
    with TemporaryDirectory() as folder:
        command = ["stms", "db", "upgrade", "--data-dir", folder] if serves else ["stms", "demo"]
        subprocess.run(command, check=True)
    if not serves:
        subprocess.run([sys.executable, "-P", "-m", "stms.core.kernels"], check=True)
    for name in ["stms.app"] if serves else ["stms.app", "stms.core"]:
        for module in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
            needed = [extra for place, extra in OF_EXTRAS.items() if module.name.startswith(place)]
            if not module.name.endswith("__main__") and all(map(find_spec, needed)):
                load(module.name, serves)
    for name in OTHERS:
        import_module(name)
    sys.stdout.write("Everything could be loaded.\n")


def load(name: str, is_optional: bool) -> None:
    """Import a module. is_optional: it may need packages that are not installed."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if not is_optional or str(error.name).partition(".")[0] == "stms":
            raise


if __name__ == "__main__":
    main()
