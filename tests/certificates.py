"""Certificates for tests, made by the command line of OpenSSL."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CertificateFiles:
    """A certificate and its private key, in files of PEM."""

    file: Path
    key: Path


def make_certificate(
    folder: Path, name: str = "localhost", *, days: int = 2, signed_by: CertificateFiles | None = None
) -> CertificateFiles:
    """A certificate for this machine whose subject is ``name``; by default it is signed by its own key.

    It may sign others, too. Files of the same name in the folder are replaced.
    """
    made = CertificateFiles(folder / f"{name}.pem", folder / f"{name}.key")
    made.key.unlink(missing_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-keyout", made.key, "-out", made.file, "-days", str(days), "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    if signed_by is not None:
        command += ["-CA", signed_by.file, "-CAkey", signed_by.key]
    subprocess.run(command, check=True, capture_output=True)
    made.key.chmod(0o600)
    return made
