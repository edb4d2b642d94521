"""A server that speaks HTTPS itself: clients, commands, the dashboard and queries, and a new certificate."""

from __future__ import annotations

import io
import shutil
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import stms_client
from tests.certificates import make_certificate
from tests.system.deployment import Deployment

pytestmark = pytest.mark.timeout(300)

ROWS, COLUMNS = 20_000, 16


class Served(Deployment):
    """A running `stms api` with a certificate of its own. key: made at its start."""

    def __init__(self, folder: Path) -> None:
        self.files = make_certificate(folder)
        settings = {"STMS_TLS_CERTIFICATE": str(self.files.file), "STMS_TLS_KEY": str(self.files.key)}
        trusted = ssl.create_default_context(cafile=self.files.file)
        super().__init__(folder, api=1, settings=settings, verify=trusted, is_clean=True)

    @property
    def key(self) -> str:
        return self.first_key

    def typed_client(self) -> stms_client.Client:
        return stms_client.Client(self.url, self.key, ca=self.files.file)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tls")
    with Served(folder) as up:
        assert up.run("ping").returncode == 0
        head = io.BytesIO()
        np.savez(head, weights=np.eye(2, COLUMNS), labels=np.array(["a", "b"]))
        (folder / "head.npz").write_bytes(head.getvalue())
        with up.typed_client() as client:
            client.import_head(folder / "head.npz", "faces")
        yield up


def test_the_client_and_commands_check_the_certificate(served: Served):
    with served.typed_client() as client:
        assert client.query("faces", "a", [1.0] * COLUMNS).match
    with (
        stms_client.Client(served.url, served.key, retry=stms_client.Retry(attempts=1)) as careful,
        pytest.raises(stms_client.Unreachable, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        careful.query("faces", "a", [1.0] * COLUMNS)
    listed = ("models", "list", "--server", served.url)
    refused = served.run(*listed)
    assert (refused.returncode, "CERTIFICATE_VERIFY_FAILED" in refused.stderr) == (1, True), refused.stderr
    allowed = served.run(*listed, SSL_CERT_FILE=str(served.files.file))
    assert (allowed.returncode, "faces" in allowed.stdout) == (0, True), allowed.stderr
    # It trusts the certificate of the settings.
    assert served.run("ping").stdout == f"{served.url} is ready.\n"


def test_large_bodies_and_packages_arrive_whole(served: Served):
    X = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    with served.typed_client() as client:
        # From the third on the body is received in place.
        for _ in range(4):
            answer = client.query_rows("faces", "a", X)
            np.testing.assert_array_equal(answer.scores, X[:, 0])
    with served.typed_client() as client, client.local("faces", ["a"]) as local:
        np.testing.assert_array_equal(local.query_rows("a", X).scores, X[:, 0])


def test_the_dashboard_knows_that_its_connection_is_encrypted(served: Served):
    context = ssl.create_default_context(cafile=served.files.file)
    with httpx.Client(base_url=served.url, verify=context, trust_env=False) as browser:
        page = browser.get("/ui/sign-in")
        assert page.status_code == 200, page.text
        form = {"key": served.key}
        signed_in = browser.post("/ui/sign-in", data=form, headers={"Origin": served.url})
        [cookie] = [text for text in signed_in.headers.get_list("set-cookie") if "session" in text]
        assert cookie.startswith("__Host-")
        assert "; Secure" in cookie
        [line] = [
            line
            for line in browser.get("/metrics").text.splitlines()
            if line.startswith("stms_tls_expires_seconds")
        ]
        assert 86_400 < float(line.split()[1]) < 2 * 86_400


@pytest.mark.long
def test_a_new_certificate_disturbs_no_query(served: Served, tmp_path: Path):
    new = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(served.files.file.read_text() + new.file.read_text())
    answers, is_over = Counter[str](), threading.Event()

    def ask() -> None:
        once = stms_client.Retry(attempts=1)
        while not is_over.is_set():
            with stms_client.Client(served.url, served.key, ca=both, retry=once) as client:
                for _ in range(5):
                    try:
                        answers[str(client.query("faces", "a", [1.0] * COLUMNS).match)] += 1
                    except stms_client.StmsError as error:
                        answers[str(error)] += 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    port = int(served.url.rpartition(":")[2])
    deadline = time.monotonic() + 60
    try:
        shutil.copy(new.key, served.files.key)
        shutil.copy(new.file, served.files.file)
        wanted = ssl.PEM_cert_to_DER_cert(new.file.read_text())
        while ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port))) != wanted:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)
    assert set(answers) == {"True"}
    assert answers["True"] > 50
