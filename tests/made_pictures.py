"""Small pictures of shapes on noise, and archives of them, for tests."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import Final

import numpy as np
from PIL import Image

SHAPES: Final = ("cross", "disc", "square")
_SIDE: Final = 48


def picture(shape: str, rng: np.random.Generator, file_format: str = "JPEG", *, side: int = _SIDE) -> bytes:
    """One shape at a random place on noise."""
    pixels = rng.normal(110.0, 30.0, (side, side, 3))
    size = int(rng.integers(14, 20))
    top, left = (int(one) for one in rng.integers(2, side - size - 2, 2))
    y, x = np.mgrid[:side, :side]
    y, x = y - top - size // 2, x - left - size // 2
    half = size // 2
    inside = {
        "cross": (np.minimum(abs(x), abs(y)) < 3) & (np.maximum(abs(x), abs(y)) < half),
        "disc": x**2 + y**2 < half**2,
        "square": np.maximum(abs(x), abs(y)) < half,
    }[shape]
    pixels[inside] = (240, 240, 80)
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, file_format)
    return buffer.getvalue()


def members(
    per_class: int, seed: int = 0, shapes: Sequence[str] = SHAPES, file_format: str = "JPEG"
) -> dict[str, bytes]:
    """Pictures by the names of their files in folders of their classes."""
    rng = np.random.default_rng(seed)
    ending = file_format.lower()
    return {
        f"{shape}/{number:03}.{ending}": picture(shape, rng, file_format)
        for shape in shapes
        for number in range(per_class)
    }


def packed(files: dict[str, bytes]) -> bytes:
    """A ZIP archive of some files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
