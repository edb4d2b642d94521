"""The service below a prefix of a proxy: every address that a browser or a program follows carries it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urljoin, urlsplit

import httpx
import pytest
import uvicorn
from pydantic import ValidationError

from app.http.client_address import TrustedProxies
from app.http.path_prefix import PathPrefixes, path_as_sent, prefix_of
from app.main import create_app
from app.services.keys import create_key
from app.settings import Settings
from stms_client import Client as StmsClient
from tests.system.in_process import gated

PREFIX = "/team/stms"
LINK = re.compile(r"""(href|action|src|data-poll)="([^"]*)\"""")


class _Proxy(BaseHTTPRequestHandler):
    """Passes requests below `PREFIX` on. strips: takes the prefix away. names: sends it in a header."""

    protocol_version = "HTTP/1.1"
    target = 0
    strips = names = False

    def do_any(self) -> None:
        if not self.path.startswith(PREFIX + "/") and self.path != PREFIX:
            self.send_error(404, "not of this service")
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
        if self.names:
            headers["X-Forwarded-Prefix"] = PREFIX
        path = self.path.removeprefix(PREFIX) or "/" if self.strips else self.path
        above = HTTPConnection("127.0.0.1", self.target, timeout=60)
        above.request(self.command, path, body, headers)
        answer = above.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        above.close()

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_any  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def _serving(app: object) -> Iterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", proxy_headers=False, interface="asgi3"))  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


@contextmanager
def _proxied(port: int, *, strips: bool, names: bool) -> Iterator[str]:
    handler = type("Proxy", (_Proxy,), {"target": port, "strips": strips, "names": names})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}{PREFIX}"
        proxy.shutdown()
        thread.join(60)


WAYS = [
    pytest.param((True, False), id="strips"),
    pytest.param((False, False), id="keeps", marks=pytest.mark.long),
    pytest.param((True, True), id="strips-names", marks=pytest.mark.long),
    pytest.param((False, True), id="keeps-names", marks=pytest.mark.long),
]


@pytest.fixture(params=WAYS)
def site(request, make_settings, queue, store, things) -> Iterator[tuple[str, str]]:
    """The address of the service behind a proxy, and a key; the prefix is a setting, or sent by the proxy."""
    strips, names = request.param
    key = create_key(store, "person", {"admin", "operator"})[1]
    changed = {"trusted_proxies": "127.0.0.1"} if names else {"root_path": PREFIX + "/"}
    settings = make_settings(require_keys=True, **changed)
    with (
        _serving(gated(create_app(settings, queue=queue))) as port,
        _proxied(port, strips=strips, names=names) as address,
    ):
        yield address, key


def test_a_person_signs_in_and_every_link_of_every_page_leads_below_the_prefix(site):
    address, key = site
    with httpx.Client(trust_env=False, follow_redirects=False, timeout=60) as browser:
        first = browser.get(f"{address}/")
        assert first.headers["location"] == f"{PREFIX}/ui/"
        asked = browser.get(urljoin(address, first.headers["location"]))
        assert asked.headers["location"].startswith(f"{PREFIX}/ui/sign-in?next=")
        form = browser.get(urljoin(address, asked.headers["location"]))
        elsewhere = browser.get(str(form.url), headers={"sec-fetch-site": "cross-site"})
        assert f'content="0; url={PREFIX}/ui/' in elsewhere.text
        [target] = [link for _, link in LINK.findall(form.text) if "sign-in" in link]
        assert target == f"{PREFIX}/ui/sign-in"
        origin = "http://" + urlsplit(address).netloc
        wrong = browser.post(
            urljoin(address, target),
            data={"key": "stms_no", "next": "/ui/models"},
            headers={"origin": origin},
        )
        assert wrong.status_code == 401
        entered = browser.post(
            urljoin(address, target), data={"key": key, "next": "/ui/models"}, headers={"origin": origin}
        )
        assert entered.headers["location"] == f"{PREFIX}/ui/models"
        assert f"Path={PREFIX};" in entered.headers["set-cookie"]
        theme = browser.post(
            f"{address}/ui/theme", data={"theme": "dark", "next": "/ui/models"}, headers={"origin": origin}
        )
        assert theme.headers["location"] == f"{PREFIX}/ui/models"
        assert f"Path={PREFIX}/ui;" in theme.headers["set-cookie"]
        seen, waiting = set[str](), [f"{PREFIX}/ui/models", f"{PREFIX}/ui/health", f"{PREFIX}/docs"]
        while waiting:
            path = waiting.pop()
            page = browser.get(urljoin(address, path))
            assert page.status_code in {200, 303}, (path, page.text)
            if page.status_code == 303:
                assert page.headers["location"].startswith(PREFIX + "/")
            if "text/html" not in page.headers.get("content-type", ""):
                continue
            for name, link in LINK.findall(page.text):
                full = urlsplit(urljoin(str(page.url), link.replace("&amp;", "&")))
                if full.scheme == "data":
                    continue
                assert full.path.startswith(PREFIX + "/"), (path, link)
                if name != "action" and full.path not in seen and len(seen) < 60:
                    seen.add(full.path)
                    waiting.append(full._replace(scheme="", netloc="", fragment="").geturl())
        assert len(seen) > 15
        left = browser.post(f"{address}/ui/sign-out", headers={"origin": origin})
        assert left.headers["location"] == f"{PREFIX}/ui/sign-in"


def test_programs_follow_location_and_link_and_read_the_document(site):
    address, key = site
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(trust_env=False, headers=headers, timeout=60) as program:
        page = program.get(f"{address}/v1/models/pets?limit=1")
        following = page.links["next"]["url"]
        assert following.startswith(f"{PREFIX}/v1/models/pets?")
        assert program.get(urljoin(address, following)).status_code == 200
        made = program.post(f"{address}/v1/datasets?name=a", content=b"a,b,label\n" + b"1,2,x\n3,4,y\n" * 20)
        assert made.status_code == 201, made.text
        assert made.headers["location"] == f"{PREFIX}/v1/datasets/{made.json()['id']}"
        assert program.get(urljoin(address, made.headers["location"])).status_code == 200
        answer = program.post(f"{address}/v1/models/pets/classes/cat:query", json={"x": [1, 2, 3]})
        assert answer.status_code == 200
        wrong = program.post(f"{address}/v1/models/pets/classes/cat:query", json={"x": [1]})
        assert wrong.json()["instance"] == f"{PREFIX}/v1/models/pets/classes/cat:query"
        assert program.get(f"{address}/v1/nothing").json()["instance"] == f"{PREFIX}/v1/nothing"
        document = program.get(f"{address}/openapi.json").json()
        assert document["servers"] == [{"url": PREFIX}]
        docs = program.get(f"{address}/docs")
        for _, link in LINK.findall(docs.text):
            if not link.startswith("data:"):
                assert program.get(urljoin(str(docs.url), link)).status_code == 200
        assert program.head(f"{address}/v2/health/ready").status_code == 200
    with StmsClient(address, api_key=key) as stms:
        assert stms.is_class("pets", "cat", [1, 0, 0]) in {True, False}
        jobs = [*stms.pages("/v1/training-jobs", limit=1)]
        assert len(jobs) > 2


@pytest.mark.parametrize(
    "value",
    [
        "stms",
        "//evil.example",
        "/stms//x",
        "/\\evil.example",
        "/a/../b",
        "/..",
        "/./a",
        "/a b",
        "/a%2f",
        "/a\r\nx: y",
        "/a\n",
        "/ä",
        "/a?b",
        "/a#b",
        "/a;b",
        "https://evil.example",
        "/v1",
        "/ui/x",
        "/metrics",
        "/" + "a" * 300,
    ],
)
def test_a_prefix_is_a_plain_path(value: str):
    if value != "/a\n":
        with pytest.raises(ValidationError):
            Settings(root_path=value)
    proxies = PathPrefixes("", TrustedProxies(["10.0.0.1"]))
    headers = [(b"x-forwarded-prefix", value.encode("utf-8"))]
    scope = {"client": ("10.0.0.1", 1), "headers": headers, "path": "/", "raw_path": b"/"}
    assert prefix_of(proxies.applied(scope, None)[0]) in ({"/a"} if value == "/a\n" else {""})


@pytest.mark.parametrize("value", ["", "/", " "])
def test_the_root_is_no_prefix(value: str):
    assert Settings(root_path=value).root_path == ""


def test_only_a_trusted_proxy_names_a_prefix_and_only_once():
    proxies = PathPrefixes("", TrustedProxies(["10.0.0.1"]))
    header = (b"x-forwarded-prefix", b"/stms/")

    def prefix(address: str, *headers: tuple[bytes, bytes]) -> str:
        scope = {"client": (address, 1), "headers": list(headers), "path": "/", "raw_path": b"/"}
        return prefix_of(proxies.applied(scope, None)[0])

    assert prefix("10.0.0.1", header) == "/stms"
    assert prefix("10.0.0.2", header) == ""
    assert prefix("10.0.0.1", header, header) == ""
    assert prefix("10.0.0.1", (b"x-forwarded-prefix", b"/a, /b")) == ""
    assert prefix("10.0.0.1") == ""


@pytest.mark.parametrize(
    ("raw_path", "path"),
    [
        (b"/stms", "/"),
        (b"/stms/", "/"),
        (b"/stms/v1/models", "/v1/models"),
        (b"/v1/models", "/v1/models"),
        (b"/stmsx/v1", "/stmsx/v1"),
        (b"/stms/stms/v1", "/stms/v1"),
        (b"/stms/v1/a%2Fb", "/v1/a/b"),
    ],
)
def test_the_prefix_is_taken_from_paths_that_have_it(raw_path: bytes, path: str):
    prefixes = PathPrefixes("/stms", TrustedProxies())
    scope, _ = prefixes.applied(
        {"headers": [], "path": unquote(raw_path.decode()), "raw_path": raw_path}, None
    )
    assert scope["path"] == path
    assert path_as_sent(scope) == b"/stms" + scope["raw_path"]
