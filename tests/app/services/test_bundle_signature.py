"""Bundles and OpenSSF model_signing, which knows nothing of us: it signs and verifies their folders, and what
it has signed is verified at the import.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from app.domain import bundle
from app.domain.errors import ServiceError, TooLarge, Unavailable, Unprocessable
from app.ingest.bundle_signature import read_keys
from app.services import bundle_import
from app.services.bundle_export import open_bundle
from app.services.bundle_import import ImportedBundle, import_bundle
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.app.api.conftest import publish_pets
from tests.refusals import refused_as

Sign = Callable[..., Path]


class SigningKey:
    """A key pair as two PEM files."""

    def __init__(self, folder: Path, name: str, curve: ec.EllipticCurve) -> None:
        key = ec.generate_private_key(curve)
        self.private, self.public = folder / f"{name}.pem", folder / f"{name}.pub"
        self.private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.public.write_bytes(public)
        self.own = key


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey(tmp_path, "key", ec.SECP256R1())


def model_signing(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("model_signing")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.fixture
def tar(sqlite_store: Store, tmp_path: Path) -> Path:
    """The bundle of a version."""
    path = tmp_path / "pets.tar"
    with open_bundle(sqlite_store, publish_pets(sqlite_store)) as file, path.open("wb") as output:
        output.writelines(file.pieces(sqlite_store))
    return path


@pytest.fixture
def folder(tar: Path, tmp_path: Path) -> Path:
    """The folder that it was unpacked to."""
    path = tmp_path / "pets"
    with tarfile.open(tar) as opened:
        opened.extractall(path, filter="data")
    return path


@pytest.fixture
def sign(tar: Path, folder: Path, tmp_path: Path) -> Sign:
    """Puts the signature of model_signing, changed by a function, into a copy of the bundle."""

    def run(key: SigningKey, *options: object, change: Callable[[bytes], bytes] = bytes) -> Path:
        signature, signed = tmp_path / "made.sig", tmp_path / "signed.tar"
        made = model_signing(
            "sign", "key", folder, "--private_key", key.private, "--signature", signature, *options
        )
        assert made.returncode == 0, made.stderr
        signed.write_bytes(tar.read_bytes())
        with signed.open("r+b") as file:
            bundle.attach(file, change(signature.read_bytes()))
        return signed

    return run


@pytest.fixture
def into(sqlite_store: Store, tmp_path: Path) -> Callable[..., ImportedBundle]:
    """Imports a file where these public keys are trusted."""

    def run(path: Path, *trusted: SigningKey, model: str = "copy") -> ImportedBundle:
        keys = tmp_path / "trusted.pem"
        keys.write_bytes(b"".join(one.public.read_bytes() for one in trusted))
        limits = Settings(bundle_keys=keys if trusted else None)
        return import_bundle(sqlite_store, path, model=model, created_by="tests", limits=limits)

    return run


def refused(code: str, call: Callable[[], object]) -> str:
    with refused_as(Unprocessable, code) as caught:
        call()
    assert [fault.field for fault in caught.value.faults] == [bundle.SIGNATURE]
    return caught.value.message


@pytest.mark.long
def test_model_signing_signs_and_verifies_the_folder(
    tar: Path, folder: Path, key: SigningKey, tmp_path: Path
):
    signature = tmp_path / "pets.sig"
    signed = model_signing("sign", "key", folder, "--private_key", key.private, "--signature", signature)
    assert signed.returncode == 0, signed.stderr
    verify = ("verify", "key", folder, "--public_key", key.public, "--signature", signature)
    verified = model_signing(*verify)
    assert verified.returncode == 0, verified.stderr
    assert b"".join(bundle.pack(folder)) == tar.read_bytes(), "what was verified is what is imported"
    manifest = folder / bundle.MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":1', b'"version":9'))
    broken = model_signing(*verify)
    assert broken.returncode != 0
    assert "manifest.json" in broken.stdout + broken.stderr


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda c: c.name)
def test_what_a_trusted_key_has_signed_is_imported(
    tar: Path, sign: Sign, into: Any, tmp_path: Path, curve: ec.EllipticCurve, key: SigningKey
):
    own = SigningKey(tmp_path, "own", curve)
    signed = sign(own)
    made = into(signed, key, own)
    assert made.version.metrics["imported"]["signer"] == next(iter(read_keys(own.public.read_text())))
    with tarfile.open(signed) as opened:
        assert opened.getnames()[-1] == "model.sig"
    again = sign(own)
    assert into(again, own).version == made.version, "the manifest is what says whether it is known"
    without = into(tar, model="other").version
    assert "signer" not in without.metrics["imported"]
    assert into(signed, model="third").is_new, "where no key is trusted signatures are not looked at"


def test_an_unsigned_or_wrongly_signed_bundle_is_refused(
    sqlite_store: Store, tar: Path, folder: Path, sign: Sign, into: Any, key: SigningKey, tmp_path: Path
):
    other = SigningKey(tmp_path, "other", ec.SECP256R1())
    assert "is not signed" in refused("unsigned_bundle", lambda: into(tar, key))
    assert "none of the keys" in refused("wrong_signature", lambda: into(sign(other), key))

    def flipped(content: bytes) -> bytes:
        document = json.loads(content)
        payload = base64.b64decode(document["dsseEnvelope"]["payload"]).replace(b"manifest", b"manifesT")
        document["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
        return json.dumps(document).encode()

    assert "none of the keys" in refused("wrong_signature", lambda: into(sign(key, change=flipped), key))
    for content in (b"x", b"{}", b"[" * 100_000, json.dumps({"dsseEnvelope": {"payload": "e30="}}).encode()):
        nothing = sign(key, change=lambda _, content=content: content)
        assert "is not one of" in refused("wrong_signature", lambda path=nothing: into(path, key))
    twice = sign(
        key, change=lambda content: content.replace(b'"signatures":[', b'"signatures":[{"sig":"AA=="},')
    )
    refused("wrong_signature", lambda: into(twice, key))
    manifest = folder / bundle.MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":1', b'"version":9'))
    assert "another manifest.json" in refused("wrong_signature", lambda: into(sign(key), key))
    with sqlite_store.read() as uow:
        assert [model for model, _ in uow.models.numbers(limit=9)] == ["pets"]


def enveloped(key: SigningKey, statement: dict[str, Any], kind: str) -> bytes:
    """A signature by a trusted key, of something else than a folder."""
    payload = json.dumps(statement).encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    sig = key.own.sign(signed, ec.ECDSA(SHA256()))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": kind,
        "signatures": [{"sig": base64.b64encode(sig).decode()}],
    }
    return json.dumps({"dsseEnvelope": envelope}).encode()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (None, None, None),
        ("kind", "text/plain", "another content"),
        ("_type", "https://in-toto.io/Statement/v2", "another version"),
        ("predicateType", "https://slsa.dev/provenance/v1", "another version"),
        ("method", "shards", "pieces of files"),
        ("algorithm", "blake3", "another manifest.json"),
        ("name", "manifest.jsoN", "another manifest.json"),
        ("digest", "0" * 64, "another manifest.json"),
    ],
)
def test_what_a_trusted_key_has_signed_for_another_purpose_is_refused(
    tar: Path, folder: Path, sign: Sign, into: Any, key: SigningKey, field: str | None, value: str, said: str
):
    digest = bundle.digest_of((folder / bundle.MANIFEST).read_bytes())
    names = {
        "kind": "application/vnd.in-toto+json",
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "https://model_signing/signature/v1.0",
        "method": "files",
        "name": bundle.MANIFEST,
        "algorithm": "sha256",
        "digest": digest,
    }
    if field is not None:
        names[field] = value
    statement = {
        "_type": names["_type"],
        "predicateType": names["predicateType"],
        "predicate": {
            "serialization": {"method": names["method"]},
            "resources": [{name: names[name] for name in ("name", "algorithm", "digest")}],
        },
    }
    path = sign(key, change=lambda _: enveloped(key, statement, names["kind"]))
    if field is None:
        assert into(path, key).is_new
    else:
        assert said in refused("wrong_signature", lambda: into(path, key))


def test_a_signature_is_the_last_member_once_and_small(
    tar: Path, folder: Path, sign: Sign, into: Any, key: SigningKey, monkeypatch: pytest.MonkeyPatch
):
    signed = sign(key)
    (folder / bundle.SIGNATURE).write_bytes((folder.parent / "made.sig").read_bytes())
    assert b"".join(bundle.pack(folder)) == signed.read_bytes(), "a folder keeps its signature"
    size = signed.stat().st_size
    with signed.open("r+b") as file:
        bundle.attach(file, (folder / bundle.SIGNATURE).read_bytes())
    assert signed.stat().st_size == size
    data = signed.read_bytes()
    member = data[tar.stat().st_size - len(bundle.END) : -len(bundle.END)]
    doubled = folder.parent / "doubled.tar"
    doubled.write_bytes(data[: -len(bundle.END)] + member + bundle.END)
    with pytest.raises(ServiceError, match="that nothing names"):
        into(doubled, key)
    monkeypatch.setattr(bundle, "MAX_SIGNATURE_BYTES", 100)
    with pytest.raises(TooLarge, match=r"model\.sig"):
        into(signed, key)
    nothing = folder.parent / "nothing.tar"
    for content in (b"", b"x" * 2048):
        nothing.write_bytes(content)
        with nothing.open("r+b") as file, pytest.raises(ValueError, match=r"header|empty"):
            bundle.attach(file, b"signature")


def test_keys_are_read_for_each_import(sqlite_store: Store, sign: Sign, key: SigningKey, tmp_path: Path):
    assert bundle_import.trusted_keys(Settings()) is None
    path = tmp_path / "keys.pem"
    path.write_bytes(b"\xff")
    with refused_as(Unavailable, "bundle_keys_unreadable", match="public keys"):
        bundle_import.trusted_keys(Settings(bundle_keys=path))
    with pytest.raises(Unavailable, match="public keys"):
        bundle_import.trusted_keys(Settings(bundle_keys=tmp_path / "missing.pem"))
    edwards = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = edwards.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for text in (
        "",
        pem,
        key.public.read_text() * 101,
        "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----",
    ):
        with pytest.raises(ValueError, match=r"1 to 100|curves|PEM"):
            read_keys(text)
    path.write_bytes(b"no key")
    with refused_as(Unavailable, "bundle_keys_unreadable", match="cannot use the public keys"):
        import_bundle(
            sqlite_store, sign(key), created_by="tests", model="copy", limits=Settings(bundle_keys=path)
        )
