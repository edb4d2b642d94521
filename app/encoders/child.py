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
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.encoders import features
from app.encoders.faults import PictureFault
from app.encoders.messages import FAULT, HEAD, LENGTH, ORDER, READY, VECTOR, Fault, Order, Ready
from app.encoders.pixels import decode, library_version
from app.encoders.probes import probe_pictures
from app.encoders.sandbox import Sandbox, processor_seconds, restrict
from app.encoders.specification import EncoderSpecification

_IDLE_SECONDS: Final = 300
_START_SECONDS: Final = 20.0
"""Processor time of loading and probing an encoder."""
_MAX_BYTES: Final = 256 * 1024**2

Encode = Callable[[bytes], NDArray[np.float32]]


def main() -> None:
    """Answer until there is nothing to answer."""
    # Ctrl-C in a terminal is for the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _IDLE_SECONDS, 0))
    order = ORDER.decode(_received(connection))
    _warm_up()
    sandbox = restrict(order.memory, order.sandbox)
    processor_seconds(_START_SECONDS)
    try:
        encode = _encoder(order, _received(connection) if order.encoder.size else b"")
        ready = _ready(encode, sandbox)
    except PictureFault as fault:
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
    raise SystemExit(f"The encoder {order.encoder.name} of {len(file)} bytes is of an unknown kind.")


def _built_in(encoder: EncoderSpecification) -> Encode:
    return {
        "hlc.1": lambda picture: features.hlc(decode(picture, features.HLC_SIDE)),
        "rnd.1": lambda picture: features.rnd(decode(picture, features.RND_SIDE)),
    }[encoder.digest]


def _ready(encode: Encode, sandbox: Sandbox) -> Ready:
    digest, slowest = hashlib.sha256(), 0.0
    vector = np.empty(0, np.float32)
    for picture in probe_pictures():
        start = time.process_time()
        vector = encode(picture)
        slowest = max(slowest, time.process_time() - start)
        digest.update(vector.tobytes())
    libraries = f"{library_version()}, NumPy {np.__version__}"
    return Ready(digest.hexdigest(), vector.size, sandbox, libraries, round(slowest, 4))


if __name__ == "__main__":
    main()
