"""The folder of a bundle is signed and verified by OpenSSF model_signing, which knows nothing of us."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from app.domain import bundle
from app.services.bundle_export import open_bundle
from app.store.unit_of_work import Store
from tests.app.api.conftest import publish_pets


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """PEM files of a private key and of its public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def model_signing(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("model_signing")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_model_signing_signs_and_verifies_the_folder(
    sqlite_store: Store, tmp_path: Path, keys: tuple[Path, Path]
):
    version = publish_pets(sqlite_store)
    tar = tmp_path / "pets.tar"
    with open_bundle(sqlite_store, version) as file, tar.open("wb") as output:
        output.writelines(file.pieces(sqlite_store))
    folder, signature = tmp_path / "pets", tmp_path / "pets.sig"
    with tarfile.open(tar) as opened:
        opened.extractall(folder, filter="data")
    private, public = keys
    signed = model_signing("sign", "key", folder, "--private_key", private, "--signature", signature)
    assert signed.returncode == 0, signed.stderr
    verify = ("verify", "key", folder, "--public_key", public, "--signature", signature)
    verified = model_signing(*verify)
    assert verified.returncode == 0, verified.stderr
    assert b"".join(bundle.pack(folder)) == tar.read_bytes(), "what was verified is what is imported"
    manifest = folder / bundle.MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":1', b'"version":9'))
    refused = model_signing(*verify)
    assert refused.returncode != 0
    assert "manifest.json" in refused.stdout + refused.stderr
