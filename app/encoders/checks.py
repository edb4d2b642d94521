"""What the first bytes of a picture say, before any pixel is decoded: its format, its size, its bounds.

The library that decodes pictures runs in a child process only. These checks read the headers by themselves:
what is no picture, or too large a one, is refused at the cost of a few comparisons.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from app.encoders.faults import PictureFault

MAX_BYTES: Final = 16 * 1024**2
MAX_PIXELS: Final = {"jpeg": 50_000_000, "png": 25_000_000, "webp": 25_000_000}
"""Phones send JPEG of 24 and 48 million pixels, which are decoded at a smaller scale."""
MIN_SIDE: Final = 8
MAX_SIDE: Final = 16_384
MAX_SCANS: Final = 64
MAX_SCANNED_PIXELS: Final = 600_000_000
"""Most scans × pixels of a JPEG: each scan goes over all its pixels."""
_MAX_CHUNKS: Final = 10_000

_JPEG: Final = b"\xff\xd8\xff"
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_OTHERS: Final = (
    (0, b"GIF8", "GIF"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"BM", "BMP"),
    (0, b"8BPS", "Photoshop"),
    (0, b"%PDF", "PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"\0\0\1\0", "ICO"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (0, b"PK\3\4", "ZIP"),
    (0, b"<svg", "SVG"),
    (0, b"<?xml", "XML"),
    (4, b"ftypavi", "AVIF"),
    (4, b"ftyphei", "HEIC"),
    (4, b"ftyphev", "HEIC"),
    (4, b"ftypmif1", "HEIF"),
    (4, b"ftypmsf1", "HEIF"),
    (4, b"ftyp", "a video"),
)
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers of JPEG that begin a frame: its height and width follow."""
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers of JPEG without a length."""


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """What a picture says of itself. width, height: in pixels, before its orientation is applied.

    scans: passes over all pixels that decoding takes, at most.
    """

    format: Literal["jpeg", "png", "webp"]
    width: int
    height: int
    scans: int = 1

    @property
    def media_type(self) -> str:
        """The content type of HTTP."""
        return f"image/{self.format}"


def check_picture(data: bytes) -> PictureHeader:
    """The header of a JPEG, PNG or WebP within all bounds. Its pixels may still be broken.

    Raises PictureFault with the code unsupported_image, broken_image, image_too_small, image_too_large,
    too_many_pixels, too_many_scans or animated_image.
    """
    if len(data) > MAX_BYTES:
        text = f"The picture has {len(data)} bytes; at most {MAX_BYTES} are accepted. Send a smaller one."
        raise PictureFault("image_too_large", text)
    header = _reader(data)(data)
    sides = f"{header.width} × {header.height}"
    if min(header.width, header.height) < MIN_SIDE:
        text = f"The picture has {sides} pixels; each side needs at least {MIN_SIDE}."
        raise PictureFault("image_too_small", text)
    pixels, most = header.width * header.height, MAX_PIXELS[header.format]
    if max(header.width, header.height) > MAX_SIDE or pixels > most:
        text = (
            f"The picture has {sides} pixels; at most {most} and {MAX_SIDE} a side are accepted. "
            "Send a smaller one: it is scaled down anyway."
        )
        raise PictureFault("too_many_pixels", text)
    if header.scans > MAX_SCANS or header.scans * pixels > MAX_SCANNED_PIXELS:
        text = (
            f"The JPEG has {header.scans} scans of {pixels} pixels; at most {MAX_SCANS} scans and "
            f"{MAX_SCANNED_PIXELS} pixels in all of them are accepted. Save it as a baseline JPEG."
        )
        raise PictureFault("too_many_scans", text)
    return header


def _reader(data: bytes) -> Callable[[bytes], PictureHeader]:
    if data.startswith(_JPEG):
        return _jpeg
    if data.startswith(_PNG):
        return _png
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp
    beginning = data[:64].lstrip()
    names = (name for at, magic, name in _OTHERS if (data if at else beginning).startswith(magic, at))
    kind = next(names, None)
    what = "There are no bytes" if not data else f"This is {kind}" if kind else "This is no picture"
    raise PictureFault("unsupported_image", f"{what}; send JPEG, PNG or WebP.")


def _broken(kind: str, at: int, why: str) -> PictureFault:
    return PictureFault("broken_image", f"The {kind} is broken at byte {at}: {why}.")


def _jpeg(data: bytes) -> PictureHeader:
    """Walk the segments to the first scan; those after it have a marker that coded data cannot contain."""
    size: tuple[int, int] | None = None
    at = 2
    while True:
        at = data.find(b"\xff", at)
        while at >= 0 and data[at + 1 : at + 2] == b"\xff":
            at += 1
        if at < 0 or at + 4 > len(data):
            raise _broken("JPEG", len(data), "it ends before its pixels")
        marker = data[at + 1]
        if marker == 0xDA:
            break
        if marker in _ALONE or marker == 0:
            at += 2
            continue
        if marker == 0xD9:
            raise _broken("JPEG", at, "it ends before its pixels")
        if marker in _FRAMES and size is None:
            if at + 9 > len(data):
                raise _broken("JPEG", at, "its frame is not complete")
            height, width = struct.unpack_from(">HH", data, at + 5)
            size = width, height
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    if size is None:
        raise _broken("JPEG", at, "a scan comes before the size of the picture")
    if 0 in size:
        raise _broken("JPEG", at, "its size is zero")
    return PictureHeader("jpeg", *size, scans=data.count(b"\xff\xda", at))


def _png(data: bytes) -> PictureHeader:
    if data[12:16] != b"IHDR" or len(data) < 33:
        raise _broken("PNG", 8, "its header is missing")
    width, height = struct.unpack_from(">II", data, 16)
    if not (width and height):
        raise _broken("PNG", 16, "its size is zero")
    at = 8
    for _ in range(_MAX_CHUNKS):
        kind = data[at + 4 : at + 8]
        if kind == b"acTL":
            raise _animated("PNG")
        if kind in {b"IDAT", b"IEND"}:
            return PictureHeader("png", width, height)
        if len(kind) < 4:
            raise _broken("PNG", at, "it ends before its pixels")
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    raise _broken("PNG", at, f"more than {_MAX_CHUNKS} pieces come before its pixels")


def _webp(data: bytes) -> PictureHeader:
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        raise _broken("WebP", len(data), "it ends within its header")
    if kind == b"VP8X":
        if body[0] & 2:
            raise _animated("WebP")
        width = 1 + int.from_bytes(body[4:7], "little")
        height = 1 + int.from_bytes(body[7:10], "little")
    elif kind == b"VP8L":
        if body[0] != 0x2F:
            raise _broken("WebP", 20, "its pixels have no beginning")
        bits = int.from_bytes(body[1:5], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif kind == b"VP8 ":
        if body[3:6] != b"\x9d\x01\x2a":
            raise _broken("WebP", 23, "its pixels have no beginning")
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", body, 6))
    else:
        raise _broken("WebP", 12, "its first piece is of an unknown kind")
    if not (width and height):
        raise _broken("WebP", 20, "its size is zero")
    return PictureHeader("webp", width, height)


def _animated(kind: str) -> PictureFault:
    return PictureFault("animated_image", f"The {kind} is animated; send one of its pictures.")
