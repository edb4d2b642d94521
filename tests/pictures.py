"""Pictures of all forms, made anew: good ones, hostile ones with the code that they get, and mutated ones."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from PIL import Image

PNG: Final = b"\x89PNG\r\n\x1a\n"


def pattern(width: int = 48, height: int = 40) -> Image.Image:
    """A picture without any symmetry."""
    y, x = np.mgrid[:height, :width]
    planes = [x * 5 % 256, (y * 6 + x) % 256, (x // 6 + y // 5) % 2 * 200 + 20]
    return Image.fromarray(np.stack(planes, 2).astype(np.uint8))


def encoded(picture: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


def turned(orientation: int, form: str = "PNG", **options: Any) -> bytes:
    """The pattern, stored in such a way that its orientation of EXIF turns it back."""
    backwards = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    picture = pattern()
    if orientation in backwards:
        picture = picture.transpose(Image.Transpose(backwards[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture, form, exif=exif, **options)


def good() -> dict[str, bytes]:
    """One picture of each form that is accepted."""
    picture = pattern()
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "jpeg": encoded(picture, "JPEG", quality=70),
        "progressive": encoded(picture, "JPEG", progressive=True, quality=60),
        "cmyk": encoded(picture.convert("CMYK"), "JPEG"),
        "grey jpeg": encoded(picture.convert("L"), "JPEG"),
        "turned": encoded(picture, "JPEG", exif=exif, subsampling=0, restart_marker_blocks=2),
        "png": encoded(picture, "PNG"),
        "palette": encoded(picture.convert("P"), "PNG"),
        "alpha": encoded(picture.convert("RGBA"), "PNG"),
        "16 bit": encoded(picture.convert("L").convert("I;16"), "PNG"),
        "1 bit": encoded(picture.convert("1"), "PNG"),
        "grey alpha": encoded(picture.convert("LA"), "PNG"),
        "webp": encoded(picture, "WEBP", quality=50),
        "lossless webp": encoded(picture.convert("RGBA"), "WEBP", lossless=True),
    }


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def flat_png(
    width: int, height: int, bits: int, colour: int, *, rows: int | None = None, extra: bytes = b""
) -> bytes:
    """A PNG of zeros. colour: 0 grey, 2 RGB, 6 RGBA. rows: how many there are, if not all. extra: chunks."""
    row = bytes(1 + (width * {0: 1, 2: 3, 6: 4}[colour] * bits + 7) // 8)
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(row) for _ in range(height if rows is None else rows)) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return PNG + head + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def scanned_jpeg(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan comes so many times more."""
    data = encoded(Image.new("L", (side, side)), "JPEG", progressive=True, quality=10)
    start, end = data.rfind(b"\xff\xda"), data.rfind(b"\xff\xd9")
    return data[:end] + data[start:end] * scans + data[end:]


def _frames(form: str) -> bytes:
    shades = [Image.new("RGB", (16, 16), (shade, 0, 0)) for shade in (0, 99, 200)]
    return encoded(shades[0], form, save_all=True, append_images=shades[1:])


def _small(form: str) -> bytes:
    return encoded(Image.new("RGB", (16, 16)), form)


_BOMB: Final = b"k\0\0" + zlib.compress(bytes(64 << 20), 9)
HOSTILE: Final[Mapping[str, tuple[str | None, Callable[[], bytes]]]] = {
    "PNG of 60000², 10 rows": ("too_many_pixels", lambda: flat_png(60_000, 60_000, 1, 0, rows=10)),
    "PNG of 16385 × 8": ("too_many_pixels", lambda: flat_png(16_385, 8, 8, 0)),
    "PNG of 4 × 16": ("image_too_small", lambda: flat_png(4, 16, 8, 0)),
    "PNG with 64 MB of text": ("broken_image", lambda: flat_png(16, 16, 8, 2, extra=chunk(b"zTXt", _BOMB))),
    "PNG without rows": ("broken_image", lambda: flat_png(4900, 4900, 8, 2, rows=0)),
    "PNG without pixels": ("broken_image", lambda: good()["png"][:60]),
    "truncated PNG": ("broken_image", lambda: good()["png"][:150]),
    "animated PNG": ("animated_image", lambda: _frames("PNG")),
    "JPEG of 2000 scans": ("too_many_scans", lambda: scanned_jpeg(512, 2000)),
    "JPEG of 24 MP and 50 scans": ("too_many_scans", lambda: scanned_jpeg(4900, 50)),
    "JPEG of 512² and 50 scans": (None, lambda: scanned_jpeg(512, 50)),
    "truncated JPEG": ("broken_image", lambda: good()["jpeg"][:900]),
    "JPEG of its beginning": ("broken_image", lambda: b"\xff\xd8\xff\xe0"),
    "JPEG without an end": ("broken_image", lambda: b"\xff\xd8" + b"\xff" * 5000),
    "animated WebP": ("animated_image", lambda: _frames("WEBP")),
    "truncated WebP": ("broken_image", lambda: good()["webp"][:100]),
    "WebP of its beginning": ("broken_image", lambda: b"RIFF\0\0\0\0WEBPVP8 "),
    "17 MiB": ("image_too_large", lambda: good()["jpeg"] + bytes(17 << 20)),
    "GIF": ("unsupported_image", lambda: _small("GIF")),
    "TIFF": ("unsupported_image", lambda: _small("TIFF")),
    "BMP": ("unsupported_image", lambda: _small("BMP")),
    "SVG": ("unsupported_image", lambda: b"\n<svg xmlns='http://www.w3.org/2000/svg'/>"),
    "EPS": ("unsupported_image", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
    "PDF": ("unsupported_image", lambda: b"%PDF-1.7\n"),
    "HEIC": ("unsupported_image", lambda: b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"),
    "AVIF": ("unsupported_image", lambda: b"\0\0\0\x18ftypavif\0\0\0\0mif1avif"),
    "text": ("unsupported_image", lambda: b"This is no picture."),
    "zeros": ("unsupported_image", lambda: bytes(1000)),
    "nothing": ("unsupported_image", lambda: b""),
}
"""Hostile pictures with the code that each gets, None for a vector."""
COSTLY: Final[Mapping[str, tuple[str | None, Callable[[], bytes]]]] = {
    "PNG of 24 MP, 1 bit": (None, lambda: flat_png(4900, 4900, 1, 0)),
    "PNG of 24 MP, RGBA, 16 bit": ("image_too_costly", lambda: flat_png(4900, 4900, 16, 6)),
}
"""Those that take a second."""


def mutated(seed: int) -> Iterator[bytes]:
    """Good pictures with changed, lost and repeated bytes; half of the PNG have right checksums."""
    rng = random.Random(seed)
    seeds = list(good().values())
    while True:
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            _mutate(data, rng, seeds)
        yield _with_checksums(bytes(data)) if rng.random() < 0.5 else bytes(data)


def _mutate(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    at = rng.randrange(len(data) if rng.random() < 0.5 else min(len(data), 200))
    change = rng.randrange(6)
    if change == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif change == 1:
        data[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    elif change == 2 and len(data) > 8:
        del data[at : at + rng.randrange(1, 64)]
    elif change == 3:
        start = rng.randrange(len(data))
        data[at:at] = data[start : start + rng.randrange(1, 200)]
    elif change == 4:
        number = rng.choice((0xFFFFFFFF, 0x7FFFFFFF, 65535, 16384, 0, 1 << 24))
        data[at : at + 4] = struct.pack(rng.choice("<>") + "I", number)
    else:
        other = rng.choice(seeds)
        data[at:] = other[rng.randrange(len(other)) :]
    if not data:
        data += b"x"


def _with_checksums(data: bytes) -> bytes:
    if not data.startswith(PNG):
        return data
    parts, at = [PNG], len(PNG)
    while at + 12 <= len(data):
        [length] = struct.unpack_from(">I", data, at)
        if at + 12 + length > len(data):
            break
        parts.append(chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return b"".join(parts) + data[at:]
