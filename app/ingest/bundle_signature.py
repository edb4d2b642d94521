"""Signatures of bundles by OpenSSF model signing 1.0 (https://github.com/sigstore/model-transparency).

A signature is a Sigstore bundle with a DSSE envelope (https://github.com/secure-systems-lab/dsse) around an
in-toto statement, which lists the files of the signed folder with their digests. Only the digest of the
manifest matters, because the manifest has the digests of all other files. Needs the package of the extra
``signing``.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from app.domain import bundle
from app.domain.errors import InputFault, Unavailable, Unprocessable

_PAYLOAD: Final = "application/vnd.in-toto+json"
_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_PREDICATE: Final = "https://model_signing/signature/v1.0"
_HASHES: Final = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}
"""Hash functions by the bits of a key's curve: NIST P-256, P-384 and P-521."""
_PEM: Final = re.compile("-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)
_MAX_KEYS: Final = 100


class _Sig(msgspec.Struct):
    sig: bytes


class _Envelope(msgspec.Struct, rename="camel"):
    payload: bytes
    payload_type: str
    signatures: list[_Sig]


class _Signature(msgspec.Struct, rename="camel"):
    dsse_envelope: _Envelope


class _Resource(msgspec.Struct):
    name: str
    algorithm: str
    digest: str


class _Serialization(msgspec.Struct):
    method: str


class _Predicate(msgspec.Struct):
    serialization: _Serialization
    resources: list[_Resource]


class _Statement(msgspec.Struct, rename="camel"):
    predicate_type: str
    predicate: _Predicate
    type: str = msgspec.field(name="_type")


def read_keys(text: str) -> dict[str, ec.EllipticCurvePublicKey]:
    """The public keys in a PEM text, 1 to 100, by the SHA-256 of their own texts. Raises ValueError."""
    found = _PEM.findall(text)
    if not 0 < len(found) <= _MAX_KEYS:
        raise ValueError(f"it has {len(found)} public keys; there must be 1 to {_MAX_KEYS}")
    keys = {}
    for one in found:
        try:
            key = load_pem_public_key(one.encode())
        except UnsupportedAlgorithm as error:
            raise ValueError(str(error)) from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.key_size not in _HASHES:
            raise ValueError("a key is not one of the elliptic curves P-256, P-384 and P-521")
        own = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        keys[hashlib.sha256(own).hexdigest()] = key
    return keys


def signer_of(signature: bytes | None, manifest: str, keys: str) -> str:
    """The key that has signed a bundle: SHA-256 of its PEM text, hexadecimal.

    signature: content of the member `model.sig`; None without one. manifest: digest of the bundle's manifest.
    keys: PEM text of the trusted public keys. Raises Unprocessable: ``unsigned_bundle``, and
    ``wrong_signature`` if the signature is by another key, of other content, or not a signature; and
    Unavailable if no key can be used.
    """
    if signature is None:
        raise _refused("unsigned_bundle", "The bundle is not signed; this server imports signed ones only.")
    try:
        envelope = msgspec.json.decode(signature, type=_Signature).dsse_envelope
        signer = _signer(envelope, keys)
        statement = msgspec.json.decode(envelope.payload, type=_Statement)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"The signature is not one of OpenSSF model signing: {error}."
        raise _refused("wrong_signature", text) from error
    if (statement.type, statement.predicate_type) != (_STATEMENT, _PREDICATE):
        raise _refused("wrong_signature", "The signature is of another version than 1.0 of model signing.")
    if statement.predicate.serialization.method != "files":
        raise _refused("wrong_signature", "The signature is of pieces of files, not of files.")
    signed = [
        (one.algorithm, one.digest) for one in statement.predicate.resources if one.name == bundle.MANIFEST
    ]
    if signed != [("sha256", manifest)]:
        raise _refused(
            "wrong_signature", f"The signature is of another {bundle.MANIFEST} than the bundle has."
        )
    return signer


def _signer(envelope: _Envelope, keys: str) -> str:
    """The trusted key of the one signature of an envelope. Raises Unprocessable and Unavailable."""
    if envelope.payload_type != _PAYLOAD or len(envelope.signatures) != 1:
        raise _refused("wrong_signature", "The envelope has another content, or not one signature.")
    kind = envelope.payload_type.encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(envelope.payload), envelope.payload)
    try:
        trusted = read_keys(keys)
    except ValueError as error:
        text = "The server cannot use the public keys that it trusts."
        raise Unavailable(text, code="bundle_keys_unreadable") from error
    for name, key in trusted.items():
        try:
            key.verify(envelope.signatures[0].sig, signed, ec.ECDSA(_HASHES[key.curve.key_size]))
        except InvalidSignature:
            continue
        return name
    raise _refused("wrong_signature", "The signature is by none of the keys that this server trusts.")


def _refused(code: str, text: str) -> Unprocessable:
    return Unprocessable(text, code=code, faults=[InputFault(bundle.SIGNATURE, code, text)])
