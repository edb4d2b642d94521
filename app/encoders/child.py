"""The child process that encodes: ``python -m app.encoders.child``, with its socket as standard input.

It loads its libraries, gives up its rights (`app.encoders.sandbox`), and only then reads the file of an
encoder and the pictures of callers, one at a time. It ends when the socket closes or nothing comes for some
minutes.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from types import ModuleType
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.encoders import features
from app.encoders.faults import EncoderFailed, PictureFault
from app.encoders.messages import FAILED, FAULT, HEAD, LENGTH, ORDER, READY, VECTOR, Fault, Order, Ready
from app.encoders.pixels import decode, library_version
from app.encoders.probes import probe_pictures
from app.encoders.sandbox import Sandbox, processor_seconds, restrict
from app.encoders.specification import EncoderSpecification

_IDLE_SECONDS: Final = 300
_START_FACTOR: Final = 3
"""Processor time of loading and probing an encoder, as a multiple of that of a question."""
_MAX_BYTES: Final = 1024**3
_WIDTHS: Final = range(8, 8193)
_TRIAL_SECONDS: Final = 1.0
"""Processor time in which a new encoder must answer each probe."""

Encode = Callable[[bytes], NDArray[np.float32]]


def main() -> None:
    """Answer until there is nothing to answer."""
    # Ctrl-C in a terminal is for the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _IDLE_SECONDS, 0))
    order = ORDER.decode(_received(connection))
    _warm_up()
    if not order.encoder.is_built_in:
        _onnx().warm_up()
    sandbox = restrict(order.memory, order.sandbox)
    processor_seconds(_START_FACTOR * order.seconds)
    try:
        encode = _encoder(order, _received(connection) if order.encoder.size else b"")
        ready = _ready(encode, order, sandbox)
    except (PictureFault, EncoderFailed) as fault:
        _send(connection, FAULT, msgspec.json.encode(Fault(fault.code, fault.message)))
        return
    processor_seconds(0)
    _send(connection, READY, msgspec.json.encode(ready))
    while True:
        picture = _received(connection)
        processor_seconds(order.seconds)
        try:
            kind, body = VECTOR, encode(picture).tobytes()
        except PictureFault as fault:
            kind, body = FAULT, msgspec.json.encode(Fault(fault.code, fault.message))
        except EncoderFailed as failed:
            kind, body = FAILED, msgspec.json.encode(Fault(failed.code, failed.message))
        processor_seconds(0)
        _send(connection, kind, body)


def _received(connection: socket.socket) -> bytes:
    """The next message. Ends this process if none comes, or the server is gone."""
    [length] = LENGTH.unpack(_part(connection, LENGTH.size))
    if length > _MAX_BYTES:
        raise SystemExit(2)
    return bytes(_part(connection, length))


def _part(connection: socket.socket, length: int) -> bytearray:
    part = bytearray(length)
    view, done = memoryview(part), 0
    while done < length:
        try:
            count = connection.recv_into(view[done:])
        except BlockingIOError:
            count = 0
        if count == 0:
            raise SystemExit(0)
        done += count
    return part


def _send(connection: socket.socket, kind: int, body: bytes) -> None:
    try:
        connection.sendall(HEAD.pack(kind, len(body)) + body)
    except OSError:
        raise SystemExit(0) from None


def _warm_up() -> None:
    """Run every decoder once, also into its errors: modules that are loaded late could not be opened."""
    for picture in probe_pictures():
        features.hlc(decode(picture, features.HLC_SIDE))
        features.rnd(decode(picture, features.RND_SIDE))
        for broken in (picture[: len(picture) // 2], picture[:60] + b"\xff" * 40 + picture[100:]):
            try:
                decode(broken, features.RND_SIDE)
            except PictureFault as fault:
                msgspec.json.encode(Fault(fault.code, fault.message))


def _encoder(order: Order, file: bytes) -> Encode:
    if order.encoder.is_built_in:
        return _built_in(order.encoder)
    encode: Encode = _onnx().encoder_of(order.encoder, file)
    return encode


def _onnx() -> ModuleType:
    """The module of ONNX files, which loads a library that takes much memory."""
    from app.encoders import onnx_session

    return onnx_session


def _built_in(encoder: EncoderSpecification) -> Encode:
    return {
        "hlc.1": lambda picture: features.hlc(decode(picture, features.HLC_SIDE)),
        "rnd.1": lambda picture: features.rnd(decode(picture, features.RND_SIDE)),
    }[encoder.digest]


def _ready(encode: Encode, order: Order, sandbox: Sandbox) -> Ready:
    """Ask the probes. Raises EncoderFailed if a new encoder is not fit for questions."""
    digest, slowest, width = hashlib.sha256(), 0.0, 0
    for picture in probe_pictures():
        start = time.process_time()
        vector = encode(picture)
        slowest = max(slowest, time.process_time() - start)
        digest.update(vector.tobytes())
        if order.is_trial and encode(picture).tobytes() != vector.tobytes():
            text = (
                "The encoder gives other numbers when it is asked again; such numbers cannot be trained with."
            )
            raise EncoderFailed("encoder_unstable", text)
        width = vector.size
    if order.is_trial and width not in _WIDTHS:
        text = f"The encoder gives {width} numbers; {_WIDTHS[0]} to {_WIDTHS[-1]} can be trained with."
        raise EncoderFailed("bad_encoder_output", text)
    if order.is_trial and slowest > _TRIAL_SECONDS:
        text = (
            f"The encoder takes {slowest:.2f} s of processor time for a picture; at most {_TRIAL_SECONDS:g}."
        )
        raise EncoderFailed("encoder_too_slow", text)
    libraries = f"{library_version()}, NumPy {np.__version__}"
    if not order.encoder.is_built_in:
        libraries += f", {_onnx().library_version()}"
    return Ready(digest.hexdigest(), width, sandbox, libraries, round(slowest, 4))


if __name__ == "__main__":
    main()
