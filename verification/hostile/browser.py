"""Cross-site requests that a real browser sends to a server without API keys.

A headless Chromium opens a page of ``evil.example`` and one of ``rebound.example``, names that it resolves to
this machine. The first sends everything that a page may send to another site; the second has the server's own
origin, as after DNS rebinding. Between browser and server a relay hands out the pages, passes on everything
else unchanged, and keeps the answers.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.refusals.refusal import DATASETS, JOBS, KEYS, PREDICT, QUERY, Answer, Refusal
from verification.hostile.server import Server
from verification.hostile.sites import CSV, NEW_KEY, ROW, code_of
from verification.hostile.wire import NOTHING

PROGRAM: Final = "chromium"
NOT_RUN: Final = f"NOT RUN: the attacks of a real browser, because {PROGRAM} is not installed."
_SECONDS: Final = 90.0
_HEAD: Final = "/v1/teachers?model=door&kind=students"
_ALIAS: Final = "/v1/models/pets/aliases/latest"

_STEPS: Final[tuple[tuple[str, str, str, bytes], ...]] = (
    *(
        (f"a page fetches {target}", "get", target, b"")
        for target in (KEYS, DATASETS, JOBS, "/v1/models", "/v1/workers", "/v1/audit", "/v2/models/pets")
    ),
    *(
        (f"a page posts text to {target}", "text", target, body)
        for target, body in (
            (KEYS, NEW_KEY),
            (f"{DATASETS}?format=csv", CSV),
            (_HEAD, b"0" * 64),
            (JOBS, b'{"dataset_id": "ds_none", "model": "door"}'),
            (f"{JOBS}/job_none/cancel", b""),
            (f"{JOBS}/job_none/retry", b""),
            (f"{KEYS}/key_none/rotate", b""),
            (QUERY, ROW),
            (PREDICT, ROW),
            ("/v2/models/pets:cat/infer", ROW),
            ("/v2/repository/models/pets/load", b""),
        )
    ),
    *((f"a page posts a file to {target}", "file", target, CSV) for target in (DATASETS, _HEAD, KEYS)),
    *(
        (f"a form of type {kind} goes to {target}", f"form {kind}", target, NEW_KEY)
        for target in (KEYS, DATASETS, _HEAD, QUERY)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
    ),
    *(
        (f"a page has {target} as {kind}", kind, target, b"")
        for kind in ("img", "script", "iframe", "link", "video")
        for target in ("/v1/models", KEYS)
    ),
    ("a page sends a beacon to the data sets", "beacon", f"{DATASETS}?format=csv", CSV),
    ("a page opens an event stream", "events", f"{JOBS}/job_none/events", b""),
    ("a page upgrades to a WebSocket", "socket", "/v1/models", b""),
    ("a page posts JSON to the keys", "json POST", KEYS, NEW_KEY),
    ("a page moves an alias", "json PUT", _ALIAS, b'{"version": 1}'),
    ("a page deletes a data set", "json DELETE", f"{DATASETS}/ds_none", b""),
    ("a rebound page lists the keys", "rebound GET", KEYS, b""),
    ("a rebound page makes a key", "rebound POST", KEYS, NEW_KEY),
    ("a rebound page moves an alias", "rebound PUT", _ALIAS, b'{"version": 1}'),
    ("a rebound page deletes a data set", "rebound DELETE", f"{DATASETS}/ds_none", b""),
    ("a rebound page sends a data set", "rebound POST", f"{DATASETS}?format=csv", CSV),
    ("a rebound page asks", "rebound POST", QUERY, ROW),
)
"""Name, way of sending, target and body."""

_PAGE: Final = """<!doctype html><meta charset="utf-8"><body><script>
const steps = %s, other = "%s";
const pause = ms => new Promise(done => setTimeout(done, ms));
const late = promise => Promise.race([promise, pause(1500)]).catch(() => null);
function part(name, url) {
  const part = document.createElement(name);
  part[name === "link" ? "href" : "src"] = url;
  if (name === "link") part.rel = "stylesheet";
  document.body.append(part);
  return pause(150);
}
function form(kind, url, body) {
  const frame = document.createElement("iframe"), form = document.createElement("form");
  frame.name = "f" + Math.random();
  Object.assign(form, {method: "post", enctype: kind, action: url, target: frame.name});
  const field = document.createElement("input");
  Object.assign(field, {name: body, value: ""});
  form.append(field);
  document.body.append(frame, form);
  form.submit();
  return pause(250);
}
function send(way, url, body) {
  const [kind, rest] = way.split(" ");
  if (kind === "get") return late(fetch(url, {mode: "no-cors", credentials: "include"}));
  if (kind === "text") return late(fetch(url, {method: "POST", mode: "no-cors", body}));
  if (kind === "file") {
    const data = new FormData();
    data.append("file", new Blob([body]), "data.csv");
    return late(fetch(url, {method: "POST", mode: "no-cors", body: data}));
  }
  if (kind === "form") return form(rest, url, body);
  if (kind === "beacon") { navigator.sendBeacon(url, body); return pause(150); }
  if (kind === "events") { new EventSource(url); return pause(150); }
  if (kind === "socket") { new WebSocket(url.replace("http:", "ws:")); return pause(150); }
  if (kind === "json" || kind === "rebound") return late(fetch(url, {
    method: rest, headers: {"Content-Type": "application/json"}, body: body || undefined}));
  return part(kind, url);
}
(async () => {
  for (const [number, way, target, body] of steps) {
    const mark = (target.includes("?") ? "&" : "?") + "attack=" + number;
    await send(way, other + target + mark, body);
  }
  await late(fetch("/done", {mode: "no-cors"}));
})();
</script>"""


def browser() -> list[Refusal]:
    """The attacks of a browser; none if it is not installed."""
    if shutil.which(PROGRAM) is None:
        return []
    return [
        Refusal("browser", name, partial(_answer, number), 403, code_of(target))
        for number, (name, _, target, _) in enumerate(_STEPS)
    ]


def _answer(number: int, server: Server) -> Answer:
    """The answer to one step; the first call has the browser take all steps."""
    if not server.browsed:
        server.browsed.update(_browse(("127.0.0.1", server.keyless.port)))
    answers = server.browsed.get(number, [])
    # Of several answers, e.g. one to a preflight and one to the request, the worst counts.
    return max(answers, key=lambda answer: answer.status != 403, default=NOTHING)


class _Relay(ThreadingHTTPServer):
    """Hands out the pages, and passes on everything else to the server at ``target``."""

    daemon_threads = True

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.answers: dict[int, list[Answer]] = {}
        self.done = {name: threading.Event() for name in ("evil.example", "rebound.example")}

    def page(self, host: str) -> bytes:
        """The page of one name, with its steps."""
        rebound = host == "rebound.example"
        steps = [
            (number, way, target, body.decode())
            for number, (_, way, target, body) in enumerate(_STEPS)
            if way.startswith("rebound") == rebound
        ]
        other = "" if rebound else f"http://127.0.0.1:{self.server_port}"
        return (_PAGE % (json.dumps(steps), other)).encode()


class _Handler(BaseHTTPRequestHandler):
    server: _Relay

    def _relay(self) -> None:
        name = self.headers.get("Host", "").partition(":")[0]
        path = urlsplit(self.path)
        if path.path == "/page" and name in self.server.done:
            self._send(Answer(200, {"content-type": "text/html"}, self.server.page(name)))
        elif path.path == "/done" and name in self.server.done:
            self.server.done[name].set()
            self._send(Answer(204))
        else:
            answer = self._forwarded()
            for number in parse_qs(path.query).get("attack", []):
                self.server.answers.setdefault(int(number), []).append(answer)
            self._send(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_HEAD = _relay  # noqa: N815

    def _forwarded(self) -> Answer:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection(*self.server.target, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("content-type", "text/plain"))
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Requests are not logged."""


def _browse(target: tuple[str, int]) -> dict[int, list[Answer]]:
    """Open both pages one after the other; returns the server's answers by the number of the step."""
    with _relaying(target) as relay:
        for name, done in relay.done.items():
            # Processes of the browser may still write into its folder when the first of them has ended.
            with tempfile.TemporaryDirectory(prefix="stms-browser-", ignore_cleanup_errors=True) as profile:
                process = subprocess.Popen(
                    [
                        PROGRAM,
                        "--headless",
                        "--no-sandbox",
                        "--disable-gpu",
                        "--disable-dev-shm-usage",
                        "--no-first-run",
                        "--remote-debugging-port=0",
                        f"--user-data-dir={profile}",
                        "--host-resolver-rules=MAP *.example 127.0.0.1",
                        f"http://{name}:{relay.server_port}/page",
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                try:
                    done.wait(_SECONDS)
                finally:
                    process.terminate()
                    process.wait()
        return relay.answers


@contextmanager
def _relaying(target: tuple[str, int]) -> Iterator[_Relay]:
    with _Relay(target) as relay:
        thread = threading.Thread(target=relay.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield relay
        finally:
            relay.shutdown()
            thread.join()
