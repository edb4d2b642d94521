"""TLS of the server: its certificate, which is read again when its files change."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.domain.errors import SetupError
from app.secret_files import read_secret
from app.settings import Settings

HANDSHAKE_SECONDS: Final = 10.0
"""A client that needs longer to agree on keys is disconnected."""
CLOSING_SECONDS: Final = 2.0
"""How long the end of a connection waits for the client's own end of TLS."""

_VERSION, _UTC_TIME = 0xA0, 0x17
"""Tags of DER (X.690)."""
_LONG_LENGTH: Final = 0x80


class PemFiles(NamedTuple):
    """The contents of a certificate's files: its chain, its private key, and the authorities of clients."""

    chain: bytes
    key: bytes
    client_ca: bytes | None


class BadCertificate(SetupError):
    """The files of the certificate cannot be used."""


class Certificate:
    """A certificate with its chain and private key, in PEM files.

    file, key: their paths. client_ca: certificates of the authorities of clients; each client must then
    present a certificate. With None, clients are not asked for one. context: for new connections. pem: the
    same for programs with their own TLS; a new object when the files have changed. expires_at: when the
    certificate ends, in seconds since the epoch. Raises BadCertificate, and BadSecretFile for a key that
    other users can read.
    """

    def __init__(self, file: Path, key: Path, client_ca: Path | None = None) -> None:
        self._file, self._key, self._client_ca = file, key, client_ca
        self._versions = self._versions_of_files()
        self.context, self.pem, self.expires_at = self._read()

    def refresh(self) -> None:
        """Read the files again if one of them has changed; existing connections keep their TLS state.

        Raises as the constructor does; the last certificate stays in use, and the next call tries again.
        """
        versions = self._versions_of_files()
        if versions != self._versions:
            self.context, self.pem, self.expires_at = self._read()
            self._versions = versions

    def _read(self) -> tuple[ssl.SSLContext, PemFiles, float]:
        key = read_secret(self._key).encode()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # Without a password argument, OpenSSL would ask for the password of an encrypted
            # key at the terminal.
            context.load_cert_chain(self._file, self._key, password="")
            if self._client_ca is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self._client_ca)
            chain = self._file.read_bytes()
            pem = PemFiles(chain, key, None if self._client_ca is None else self._client_ca.read_bytes())
            expires_at = expiry(chain.decode("ascii"))
        except (OSError, ValueError) as error:
            # An error of OpenSSL is an OSError, too.
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            files = ", ".join(map(str, filter(None, (self._file, self._key, self._client_ca))))
            raise BadCertificate(f"The certificate of {files} cannot be used: {reason}.") from error
        return context, pem, expires_at

    def _versions_of_files(self) -> list[tuple[int, int, int]]:
        """Properties that differ once a file was replaced or changed. Raises BadCertificate."""
        try:
            states = [path.stat() for path in (self._file, self._key, self._client_ca) if path is not None]
        except OSError as error:
            raise BadCertificate(f"{error.filename} cannot be read: {error.strerror}.") from error
        return [(state.st_ino, state.st_mtime_ns, state.st_size) for state in states]


def certificate_of(settings: Settings) -> Certificate | None:
    """The certificate that the settings name, if any. Raises as `Certificate`."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


def subject_of(certificate: Mapping[str, Any]) -> str:
    """The subject of a client's certificate, as `ssl.SSLSocket.getpeercert` returns it."""
    names = (f"{name}={value!r}" for part in certificate.get("subject", ()) for name, value in part)
    return ", ".join(names) or "no name"


def expiry(text: str) -> float:
    """When the first certificate of a PEM file ends, in seconds since the epoch. Raises ValueError.

    RFC 5280, section 4.1: the end of the validity comes after the version, which may be absent, the serial
    number, the algorithm and the issuer.
    """
    end = text.find(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
    certificate = ssl.PEM_cert_to_DER_cert(text[text.find(ssl.PEM_HEADER) : end])
    try:
        _, signed, _ = _element(_element(certificate)[1])
        tag, _, rest = _element(signed)
        if tag == _VERSION:
            _, _, rest = _element(rest)
        for _ in ("algorithm", "issuer"):
            _, _, rest = _element(rest)
        _, validity, _ = _element(rest)
        tag, ends, _ = _element(_element(validity)[2])
    except IndexError:
        raise ValueError("it is not a certificate") from None
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(ends.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The tag and the content of the first DER element, and the data after it. Raises IndexError."""
    start, length = 2, data[1]
    if length > _LONG_LENGTH:
        start += length - _LONG_LENGTH
        length = int.from_bytes(data[2:start])
    return data[0], data[start : start + length], data[start + length :]
