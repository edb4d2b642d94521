"""TLS at the server: certificates, handshakes and their limits, and what differs for its connections."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.processes.periodic import PeriodicWork
from app.processes.scoreboard import Scoreboard
from app.secret_files import ExposedSecretFile
from app.server import progress, server
from app.server.context import ServerContext
from app.server.tls import BadCertificate, Certificate, expiry
from tests.app.server.wire import (
    POST,
    RunningServer,
    ask,
    listener_with_buffer,
    parse_responses,
    read_response,
    read_slowly,
    running,
)
from tests.certificates import CertificateFiles, make_certificate


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_certificate(tmp_path)


def trusting(files: CertificateFiles) -> ssl.SSLContext:
    """A client's context that accepts the certificate alone."""
    return ssl.create_default_context(cafile=files.file)


async def connect(
    up: RunningServer, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await up.connect(ssl=context, server_hostname="localhost")


async def refusals(up: RunningServer, count: int) -> None:
    """Wait until so many handshakes have failed and their connections are no longer counted."""
    while up.refused.get("tls_handshake", 0) < count or up.server._slot.connections > 0:
        await asyncio.sleep(0.01)


async def test_requests_are_answered_on_kept_connections(files):
    async with running(certificate=Certificate(files.file, files.key)) as up:
        reader, writer = await connect(up, trusting(files))
        for _ in range(3):
            assert (await ask(reader, writer)).body == b"hi"
        assert {scope["scheme"] for scope in up.echo.scopes} == {"https"}
        assert {scope["client"][0] for scope in up.echo.scopes} == {"127.0.0.1"}
        agreed = writer.get_extra_info("ssl_object")
        assert agreed.version() == "TLSv1.3"
        body = b"x" * 3_000_000
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert (await read_response(reader)).body == body
        writer.close()
        await writer.wait_closed()
        while up.server._slot.connections:
            await asyncio.sleep(0.01)


async def test_an_error_is_answered_before_the_connection_ends(files):
    async with running(certificate=Certificate(files.file, files.key)) as up:
        reader, writer = await connect(up, trusting(files))
        writer.write(b"nonsense\r\n\r\n")
        [response] = parse_responses(await asyncio.wait_for(reader.read(), 30))
        assert response.status == 400


async def test_only_http_1_1_over_tls_1_2_or_newer_is_spoken(files):
    async with running(certificate=Certificate(files.file, files.key)) as up:
        context = trusting(files)
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await connect(up, context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        old = trusting(files)
        # OpenSSL itself offers no version before 1.2 at the usual level.
        old.set_ciphers("DEFAULT@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await connect(up, old)
        newer = trusting(files)
        newer.maximum_version = ssl.TLSVersion.TLSv1_2
        reader, writer = await connect(up, newer)
        assert (await ask(reader, writer)).status == 200


@pytest.mark.parametrize(
    "hello",
    [
        pytest.param(POST, id="plain-http"),
        # SSL 3.0: a record of version 3.0 with a client hello that offers no newer one.
        pytest.param(bytes.fromhex("160300002d0100002903000000") + bytes(40), id="ssl-3"),
        pytest.param(bytes(range(256)) * 64, id="noise"),
        pytest.param(bytes.fromhex("1603010200010001fc0303"), id="slow"),
        pytest.param(b"", id="silent"),
    ],
)
async def test_what_is_no_handshake_ends_alone(files, monkeypatch, hello: bytes):
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.5)
    async with running(certificate=Certificate(files.file, files.key)) as up:
        reader, writer = await up.connect()
        writer.write(hello)
        try:
            received = await asyncio.wait_for(reader.read(), 30)
        except ConnectionResetError:
            received = b""
        # At most an alert of TLS.
        assert received[:1] in (b"", b"\x15")
        await refusals(up, 1)
        reader, writer = await connect(up, trusting(files))
        assert (await ask(reader, writer)).status == 200


async def test_handshakes_that_do_not_go_on_give_way(files, monkeypatch):
    monkeypatch.setattr(server, "_ENDING_SECONDS", 0.1)
    monkeypatch.setattr(server, "_RETRY_SECONDS", 0.1)
    certificate = Certificate(files.file, files.key)
    async with running(certificate=certificate, max_connections=8) as up:
        for _ in range(64):
            await up.connect()
        reader, writer = await asyncio.wait_for(connect(up, trusting(files)), 30)
        assert (await ask(reader, writer)).status == 200
        most = up.server.context.max_connections * server.HARD_LIMIT
        assert up.server.context.handshakes.total() <= most


def test_a_network_has_a_share_of_the_handshakes():
    context = ServerContext(Scoreboard.private().slots[0], 100, max_per_address=2)
    with context.handshake("192.0.2.1") as first, context.handshake("192.0.2.1") as second:
        with context.handshake("192.0.2.1") as third, context.handshake("192.0.2.2") as other:
            assert (first, second, third, other) == (True, True, False, True)
        # Loopback has no limit.
        with context.handshake("127.0.0.1"), context.handshake("127.0.0.1"):
            assert context.refused["connections_of_address"] == 1
    assert not context.handshakes


async def test_a_client_that_reads_nothing_is_disconnected(files, monkeypatch):
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(progress, "READ_SECONDS", 1.0)
    async with running(certificate=Certificate(files.file, files.key)) as up:
        _, writer = await up.connect(ssl=trusting(files), server_hostname="localhost", limit=1024)
        writer.transport.pause_reading()
        writer.write(POST.replace(b"/x", b"/large"))
        while not up.refused.get("slow_reader"):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_a_slow_reader_gets_all_of_what_was_written_at_once(files, monkeypatch, is_encrypted):
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(progress, "READ_SECONDS", 0.5)
    certificate = Certificate(files.file, files.key) if is_encrypted else None
    async with running(certificate=certificate, listener=listener_with_buffer(1 << 20)) as up:
        options = {"ssl": trusting(files), "server_hostname": "localhost"} if is_encrypted else {}
        # A kernel with more room acknowledges nothing for seconds.
        reader, writer = await up.connect(receive_buffer=1 << 16, limit=1 << 14, **options)
        writer.write(POST.replace(b"/x", b"/large"))
        await reader.readuntil(b"\r\n\r\n")
        assert await read_slowly(reader, rate=700_000, size=4_000_000) >= 4_000_000
        rest = await asyncio.wait_for(reader.readexactly(25_000_000), 60)
        assert (len(rest), up.refused) == (25_000_000, {})


async def test_a_new_certificate_is_used_by_new_connections(tmp_path, files, monkeypatch):
    monkeypatch.setattr(server, "TIMEOUT_CHECK_SECONDS", 0.05)
    old = trusting(files)
    periodic = PeriodicWork(["connections", "certificate"])
    certificate = Certificate(files.file, files.key)
    async with running(certificate=certificate, periodic=periodic) as up:
        reader, writer = await connect(up, old)
        assert (await ask(reader, writer)).status == 200
        (tmp_path / "new").mkdir()
        new = make_certificate(tmp_path / "new")
        # First one of the two files, as if the server looked in between.
        shutil.copy(new.file, files.file)
        while not periodic.failures["certificate"]:
            await asyncio.sleep(0.01)
        again = await connect(up, old)
        assert (await ask(*again)).status == 200
        shutil.copy(new.key, files.key)
        while True:
            try:
                renewed = await connect(up, trusting(new))
            except ssl.SSLCertVerificationError:
                await asyncio.sleep(0.05)
            else:
                break
        assert (await ask(*renewed)).status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(up, old)
        # The first connection was not disturbed.
        assert (await ask(reader, writer)).status == 200


async def test_clients_show_certificates_where_that_is_required(tmp_path, files, capfd):
    authority = make_certificate(tmp_path, "authority")
    good = make_certificate(tmp_path, "camera", signed_by=authority)
    stranger = make_certificate(tmp_path, "stranger")

    async def answer(up: RunningServer, shown: CertificateFiles | None) -> int:
        context = trusting(files)
        if shown is not None:
            context.load_cert_chain(shown.file, shown.key)
        return (await ask(*await connect(up, context))).status

    certificate = Certificate(files.file, files.key, authority.file)
    async with running(certificate=certificate, log_level="info") as up:
        assert await answer(up, good) == 200
        for refused in (None, stranger):
            # In TLS 1.3 a client learns of a refusal only when it reads.
            with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                await answer(up, refused)
        assert up.echo.paths == ["/"]
        while up.refused.get("tls_handshake", 0) < 2:
            await asyncio.sleep(0.01)
    assert "has shown the certificate of commonName='camera'." in capfd.readouterr().err


@pytest.mark.parametrize("days", [1, 300, 15_000, 60_000])
@pytest.mark.parametrize("kind", [["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"], ["rsa:2048"]])
def test_the_end_of_a_certificate_is_that_of_openssl(tmp_path, kind: list[str], days: int):
    file, key = tmp_path / "a.pem", tmp_path / "a.key"
    command = ["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-keyout", key, "-out", file]
    subprocess.run([*command, "-days", str(days), "-subj", "/CN=ü/O=x"], check=True, capture_output=True)
    shown = subprocess.check_output(["openssl", "x509", "-enddate", "-noout", "-in", file], text=True)
    ends = datetime.strptime(shown.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    # A chain follows the certificate.
    assert expiry("A comment.\n" + file.read_text() + file.read_text()) == ends.timestamp()


def test_files_that_cannot_be_used_are_refused(tmp_path, files):
    other = make_certificate(tmp_path, "other")
    encrypted, nonsense = tmp_path / "encrypted.key", tmp_path / "nonsense.pem"
    command = ["openssl", "pkcs8", "-topk8", "-v2", "aes128", "-passout", "pass:secret"]
    subprocess.run([*command, "-in", files.key, "-out", encrypted], check=True)
    encrypted.chmod(0o600)
    nonsense.write_text("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n")
    for file, key, authority in (
        (files.file, other.key, None),
        (files.file, encrypted, None),
        (nonsense, files.key, None),
        (files.key, files.key, None),
        (files.file, files.key, nonsense),
    ):
        with pytest.raises(BadCertificate, match=r"^The certificate of .* cannot be used: .*\.$"):
            Certificate(file, key, authority)
    with pytest.raises(BadCertificate, match=r"absent\.pem cannot be read"):
        Certificate(tmp_path / "absent.pem", files.key)
    files.key.chmod(0o644)
    with pytest.raises(ExposedSecretFile, match="chmod 600"):
        Certificate(files.file, files.key)


def test_no_part_of_a_certificate_is_read_beyond_its_end(files):
    text = files.file.read_text()
    der = ssl.PEM_cert_to_DER_cert(text)
    for size in range(len(der) - 1):
        cut = ssl.DER_cert_to_PEM_cert(der[:size])
        try:
            ends = expiry(cut)
        except ValueError:
            continue
        # The end of the certificate stands in what is left.
        assert ends == expiry(text)
