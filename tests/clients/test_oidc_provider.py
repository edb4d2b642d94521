"""Tokens of an OpenID provider in an environment of its own ask a real server with two query processes.

Node.js and npm must be installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import pytest

from tests.clients.test_generated_clients import need, npm
from tests.clients.test_stock_clients import HERE
from tests.system.processes import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

CAT = "/v1/models/pets/classes/cat:query"
ROW = {"x": [1.0, 0.0, 0.0]}
AUDIENCE = "https://stms.example.com"
RULES = [
    {"claim": "sub", "equals": "root", "scopes": ["admin"]},
    {"claim": "sub", "equals": "robot", "scopes": ["query"], "models": ["pets"]},
]


@dataclass
class Provider:
    """A running provider. issuer: its address, as in its tokens."""

    process: subprocess.Popen[str]
    issuer: str

    def add_key(self, algorithm: str) -> str:
        """Have it sign with one more key by turns; returns its id."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{algorithm}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def token(self, program: str, audience: str = AUDIENCE, kid: str = "") -> str:
        """A token of a program, signed with the key ``kid`` if one is named."""
        form = {"grant_type": "client_credentials", "client_id": program, "aud": audience}
        for _ in range(10):
            made = httpx.post(f"{self.issuer}/token", data=form, trust_env=False).json()["access_token"]
            if not kid or jwt.get_unverified_header(made)["kid"] == kid:
                return str(made)
        raise AssertionError(f"no token with {kid}")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    for program in ("node", "npm"):
        need(program)
    folder = tmp_path_factory.mktemp("provider") / "oidc_provider"
    shutil.copytree(HERE / "oidc_provider", folder)
    npm(folder, "npm", "ci", "--no-audit", "--no-fund")
    command = ["node", "provider.mjs", str(free_port())]
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield Provider(process, process.stdout.readline().strip())
        process.terminate()


@pytest.fixture(scope="module")
def server(start_service: Any, provider: Provider) -> Iterator[list[httpx.Client]]:
    """Connections that are spread over the two processes of a server, which accepts the provider's tokens."""
    entry = {
        "issuer": provider.issuer,
        "audience": AUDIENCE,
        "jwks": f"{provider.issuer}/jwks",
        "rules": RULES,
    }
    settings = {"STMS_API_PROCESSES": "2", "STMS_AUTH_FAILURE_RATE": "1000"}
    service = start_service(STMS_TOKEN_ISSUERS=json.dumps([entry]), **settings)
    address = f"http://{service.address}"
    clients = [httpx.Client(base_url=address, trust_env=False, timeout=60) for _ in range(8)]
    yield clients
    for client in clients:
        client.close()


def ask(clients: list[httpx.Client], text: str) -> Counter[str]:
    """Codes of the answers to a query over each connection; empty for success."""
    headers = {"authorization": f"Bearer {text}"}
    answers = [client.post(CAT, json=ROW, headers=headers) for client in clients]
    return Counter("" if answer.status_code == 200 else answer.json()["code"] for answer in answers)


def test_a_token_of_the_provider_asks_every_process(server: list[httpx.Client], provider: Provider):
    for _ in range(3):
        assert ask(server, provider.token("robot")) == {"": 8}
    assert ask(server, provider.token("robot", "https://other.example.com")) == {"invalid_token": 8}
    assert ask(server, provider.token("stranger")) == {"token_without_rule": 8}
    headers = {"authorization": f"Bearer {provider.token('robot')}"}
    shown = server[0].get("/v1/whoami", headers=headers).json()
    assert (shown["id"], shown["models"]) == (f"jwt:{provider.issuer}:robot", ["pets"])
    people = server[0].post("/v1/models/people/classes/a:query", json=ROW, headers=headers)
    assert (people.status_code, people.json()["code"]) == (403, "model_not_allowed")


def test_a_new_key_is_read_while_the_old_tokens_are_in_use(server: list[httpx.Client], provider: Provider):
    old = provider.token("robot")
    found: Counter[str] = Counter()
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            found.update(ask(server[4:], old))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        kid = provider.add_key("ES256")
        new = provider.token("robot", kid=kid)
        # A missing key has the keys read again once they are a minute old.
        deadline = time.monotonic() + 100
        while (codes := ask(server[:4], new)) != {"": 4} and time.monotonic() < deadline:
            assert set(codes) <= {"", "invalid_token", "token_keys_unread"}
            time.sleep(1.0)
        assert codes == {"": 4}
    finally:
        ended.set()
        thread.join()
    assert set(found) == {""}
    assert found[""] > 100


def test_a_revocation_holds_on_every_process_when_it_is_confirmed(
    server: list[httpx.Client], provider: Provider
):
    text = provider.token("robot")
    for _ in range(3):
        assert ask(server, text) == {"": 8}, "its head is known"
    root = {"authorization": f"Bearer {provider.token('root')}"}
    body = {"issuer": provider.issuer, "sub": "robot", "reason": "lost"}
    deadline = time.monotonic() + 90
    while (made := server[0].post("/v1/token-revocations", json=body, headers=root)).status_code in (
        401,
        503,
    ):
        # The control process reads the new key of the test before, once its keys are a minute old.
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert made.status_code == 201
    assert ask(server, text) == {"revoked_token": 8}
    [listed] = server[0].get("/v1/token-revocations", headers=root).json()["data"]
    assert (listed["sub"], listed["reason"]) == ("robot", "lost")


def test_each_process_has_verified_each_token_once(server: list[httpx.Client], provider: Provider):
    def verified() -> float:
        lines = server[0].get("/metrics").text.splitlines()
        [line] = [line for line in lines if line.startswith('stms_tokens_total{reason="verified"}')]
        return float(line.rpartition(" ")[2])

    time.sleep(1.0)
    before, text = verified(), provider.token("root")
    for _ in range(20):
        assert ask(server, text) == {"": 8}
    time.sleep(1.0)
    assert 1 <= verified() - before <= 2
