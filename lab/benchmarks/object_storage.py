"""Cost of a large data set whose bytes are in an object store: writes of PostgreSQL, bytes through the API.

    python -m lab.benchmarks.object_storage [--mib N]

A service on PostgreSQL and an object store of our own (moto's server) gets a data set from the Python client,
through a relay that counts what the client sends. The last line is a JSON object:

bytes                  of the file
wal_mb                 write-ahead log of PostgreSQL in MB, from the upload to the registered data set
wal_database_mb        the same of a service without an object store
api_share_of_upload    bytes that the client sends to the API : bytes of the file
upload_seconds         from the call to the data set; upload_database_seconds without an object store
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import psycopg

from lab.benchmarks.storage import COLUMNS, write_npy
from stms_client import Client
from tests.system.deployment import Deployment
from tests.system.object_store import object_store
from tests.system.postgres import Postgres, postgres

_PIECE: Final = 1 << 16


class CountingRelay:
    """Passes connections of a port of loopback on to another one. sent: bytes of the clients so far."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.sent = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                for source, target, counts in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=(source, target, counts), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if counts:
                    with self._lock:
                        self.sent += len(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)


def measure(folder: Path, mib: int) -> dict[str, float]:
    """Measure all figures with a file of ``mib`` MiB. The disk of ``folder`` needs six times its size."""
    file = folder / "rows.npy"
    write_npy(file, mib * 2**20 // (8 * (COLUMNS + 1)))
    size = file.stat().st_size
    with postgres() as database, object_store() as objects:
        plain = _uploaded(folder / "plain", database, "plain", {}, file)
        stored = _uploaded(folder / "stored", database, "stored", objects.settings("benchmark"), file)
    file.unlink()
    return {
        "bytes": size,
        "wal_mb": round(stored["wal"] / 1e6, 2),
        "wal_database_mb": round(plain["wal"] / 1e6, 2),
        "api_share_of_upload": round(stored["sent"] / size, 7),
        "upload_seconds": round(stored["seconds"], 1),
        "upload_database_seconds": round(plain["seconds"], 1),
    }


def _uploaded(
    folder: Path, database: Postgres, name: str, settings: Mapping[str, str], file: Path
) -> dict[str, float]:
    """Upload the file to a service of its own."""
    folder.mkdir()
    address = database.create_database(name)
    keys = {"train": {"train"}}
    with (
        Deployment(folder, api=1, database=address, keys=keys, settings=settings) as service,
        _relay(service.port) as relay,
        Client(relay.url, service.keys["train"]) as client,
        psycopg.connect(database.address(), autocommit=True) as connection,
    ):
        began, before = time.perf_counter(), _wal(connection)
        client.upload_dataset(file)
        return {
            "seconds": time.perf_counter() - began,
            "wal": _wal(connection) - before,
            "sent": relay.sent,
        }


@contextmanager
def _relay(port: int) -> Iterator[CountingRelay]:
    relay = CountingRelay(port)
    try:
        yield relay
    finally:
        relay.close()


def _wal(connection: psycopg.Connection) -> int:
    """Bytes of the write-ahead log since the beginning."""
    row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()
    assert row is not None
    return int(row[0])


def main(out: IO[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--folder", type=Path, default=None, help="where to put some gigabytes meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stms-objects-", dir=options.folder) as folder:
        print(json.dumps(measure(Path(folder), options.mib)), file=out)


if __name__ == "__main__":
    main(sys.stdout)
