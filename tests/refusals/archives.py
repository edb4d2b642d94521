"""Files with false declarations: ZIP archives built byte by byte, safetensors with any header."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")


def array(values: Any, **options: Any) -> bytes:
    """An .npy file."""
    file = io.BytesIO()
    np.save(file, np.asarray(values, **options), allow_pickle=True)
    return file.getvalue()


def npz(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of ready-made members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def good_npz(**more: bytes) -> dict[str, bytes]:
    """Members of a small valid data set, and any others."""
    members = {"X.npy": array(np.arange(12.0).reshape(6, 2)), "y.npy": array([0, 1] * 3)}
    return members | {f"{name}.npy": data for name, data in more.items()}


def lying_member(
    data: bytes, told: int, *, name: bytes = b"X.npy", method: int = zipfile.ZIP_DEFLATED, flags: int = 0
) -> bytes:
    """An archive with one compressed member that declares a size of ``told`` bytes."""
    packed = zlib.compress(data, 9)[2:-4] if method == zipfile.ZIP_DEFLATED else data
    return archive([(name, packed, told, method, flags, 0)])


def archive(members: list[tuple[bytes, bytes, int, int, int, int]], entries: int | None = None) -> bytes:
    """An archive of members (name, compressed data, declared size, method, flags, CRC-32).

    entries: number of entries that the end record declares.
    """
    body, directory = b"", b""
    for name, packed, told, method, flags, total in members:
        offset = len(body)
        size = min(told, 0xFFFFFFFF)
        body += _LOCAL.pack(b"PK\x03\x04", 20, flags, method, 0, 0, total, len(packed), size, len(name), 0)
        body += name + packed
        directory += _entry(name, len(packed), size, method, flags, total, offset)
    count = len(members) if entries is None else entries
    end = _END.pack(b"PK\x05\x06", 0, 0, count & 0xFFFF, count & 0xFFFF, len(directory), len(body), 0)
    return body + directory + end


def overlapping(entries: int, size: int) -> bytes:
    """An archive with many directory entries for the same compressed member."""
    data = array(np.zeros(size // 8))
    packed = zlib.compress(data, 9)[2:-4]
    total = zlib.crc32(data)
    body = _LOCAL.pack(b"PK\x03\x04", 20, 0, 8, 0, 0, total, len(packed), len(data), 5, 0) + b"X.npy" + packed
    directory = b"".join(
        _entry(b"X%03d.npy" % number, len(packed), len(data), 8, 0, total, 0) for number in range(entries)
    )
    return body + directory + _END.pack(b"PK\x05\x06", 0, 0, entries, entries, len(directory), len(body), 0)


def many_members(count: int) -> bytes:
    """An archive with many empty directory entries."""
    body = _LOCAL.pack(b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    directory = _entry(b"a", 0, 0, 0, 0, 0, 0) * count
    told = min(count, 0xFFFF)
    return body + directory + _END.pack(b"PK\x05\x06", 0, 0, told, told, len(directory), len(body), 0)


def zip64(size: int) -> bytes:
    """An archive that declares a ZIP64 directory of ``size`` bytes, which no file can contain."""
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 10**6, 10**6, size, 2**63 - 1)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, 4, 1)
    end = _END.pack(b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return b"PK\x03\x04" + end64 + locator + end


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header. length: declared length of the header; None for the true one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _entry(name: bytes, packed: int, size: int, method: int, flags: int, total: int, offset: int) -> bytes:
    front = _CENTRAL.pack(
        *(b"PK\x01\x02", 20, 20, flags, method, 0, 0, total, packed, size, len(name), 0, 0, 0, 0, 0, offset)
    )
    return front + name
