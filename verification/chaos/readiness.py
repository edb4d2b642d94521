"""Checks that /readyz is right: 503 while the database is down, and 200 while everything works.

A server needs a moment to notice a change, and so does the client, so answers within a few seconds of a
change are not judged. Neither are answers of a server that is killed, stopped or starting.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from verification.chaos.service import FaultyService, Instance

GRACE_SECONDS = 3.0
"""Time in which a server must notice that the database is down."""
RETURN_SECONDS = 5.0
"""Time in which it must notice that the database is back."""
_PAUSE_SECONDS = 0.25
_TIMEOUT_SECONDS = 15.0
_STARTING_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One answer of /readyz. began, ended: time in the event log, seconds. status: 0 if there was no answer.

    reasons: the required checks that failed.
    """

    began: float
    ended: float
    server: str
    status: int
    reasons: tuple[str, ...]


class Readiness:
    """One thread per server that calls /readyz four times a second until `stop`."""

    def __init__(self, deployment: FaultyService) -> None:
        self._deployment = deployment
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.probes: list[Probe] = []
        self._threads = [
            threading.Thread(target=self._run, args=(api,), daemon=True) for api in deployment.apis
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the probes."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def ready_without_database(self) -> list[Probe]:
        """Probes answered with 200 though the database had been down for longer than `GRACE_SECONDS`."""
        return [
            probe
            for probe in self.probes
            if probe.status == 200
            and self._unreachable(probe.server, probe.began - GRACE_SECONDS, probe.ended)
        ]

    def not_ready_with_database(self) -> list[Probe]:
        """Probes not answered with 200 though server and database had been up for a while."""
        return [probe for probe in self.probes if probe.status != 200 and not self._excused(probe)]

    def correct(self) -> int:
        """Number of correct answers."""
        wrong = len(self.ready_without_database()) + len(self.not_ready_with_database())
        return len(self.probes) - wrong

    def _instance(self, name: str) -> Instance:
        return next(api for api in self._deployment.apis if api.name == name)

    def _unreachable(self, server: str, begin: float, end: float) -> bool:
        """Whether the server could not reach the database during the whole interval."""
        cut = self._instance(server).disconnected
        return any(
            intervals.seconds_within(begin, end) >= end - begin
            for intervals in (self._deployment.outages, cut)
        )

    def _excused(self, probe: Probe) -> bool:
        instance = self._instance(probe.server)
        since = probe.began - GRACE_SECONDS
        if any(
            intervals.overlapping(since, probe.ended)
            for intervals in (
                self._deployment.outages,
                self._deployment.read_only,
                instance.disconnected,
                instance.program.control_downtime,
            )
        ):
            return True
        # A process that was restarted needs time to start up; one that was only stopped does not.
        return bool(
            instance.program.downtime.overlapping(since, probe.ended)
            or (
                probe.status == 0
                and instance.program.downtime.overlapping(probe.began - _STARTING_SECONDS, probe.ended)
            )
        )

    def _run(self, api: Instance) -> None:
        while not self._stopping.wait(_PAUSE_SECONDS):
            began = self._deployment.event_log.now
            status, reasons = _ask(api.url)
            probe = Probe(began, self._deployment.event_log.now, api.name, status, reasons)
            with self._lock:
                self.probes.append(probe)
            if status != 200:
                self._deployment.event_log.record(
                    "not_ready", server=api.name, status=status, reasons=reasons
                )


def _ask(url: str) -> tuple[int, tuple[str, ...]]:
    """Status and the required checks that failed; (0, …) if there was no answer."""
    started = time.monotonic()
    try:
        urllib.request.urlopen(f"{url}/readyz?verbose", timeout=_TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _reasons(error.read())
    except OSError as error:
        return 0, (type(error).__name__, f"{time.monotonic() - started:.1f} s")
    except Exception as error:  # noqa: BLE001 - a truncated answer raises many kinds of errors
        return 0, (type(error).__name__,)
    return 200, ()


def _reasons(data: bytes) -> tuple[str, ...]:
    try:
        checks = json.loads(data).get("checks") or []
    except ValueError:
        return ("unreadable",)
    return tuple(
        f"{check['name']}: {check['detail']}" for check in checks if check["needed"] and not check["ok"]
    )
