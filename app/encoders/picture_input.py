"""What an own encoder expects of a picture: its size, the order of colours, and the scale of numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InvalidRequest

SCALINGS: Final[Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "clip": ((122.7709383, 116.7460125, 104.09373615), (68.5005327, 66.6321579, 70.32316305)),
    "unit": ((0.0,), (255.0,)),
    "symmetric": ((127.5,), (127.5,)),
    "lite": ((127.0,), (128.0,)),
    "bytes": ((0.0,), (1.0,)),
}
"""By name the mean that is taken from red, green and blue (0 to 255), and by what the rest is divided."""
MIN_SIDE: Final = 16
MAX_SIDE: Final = 512
PATTERN: Final = (
    r"^image:(1[6-9]|[2-9][0-9]|[1-4][0-9]{2}|50[0-9]|51[0-2])x\1:(rgb|bgr)"
    r":(imagenet|clip|unit|symmetric|lite|bytes)(:crop)?$"
)
"""Of the texts that `picture_input` reads."""


class PictureInput(NamedTuple):
    """side: in pixels. order: rgb or bgr. scaling: one of `SCALINGS`. crop: from the centre."""

    side: int
    order: str
    scaling: str
    crop: bool


def picture_input(text: str) -> PictureInput:
    """The parts of a text such as ``image:224x224:rgb:imagenet:crop``. Raises InvalidRequest."""
    if re.fullmatch(PATTERN, text):
        _, size, order, scaling, *crop = text.split(":")
        return PictureInput(int(size.partition("x")[0]), order, scaling, bool(crop))
    raise InvalidRequest(
        f"The input {text[:100]!r} is not image:SIDExSIDE:rgb|bgr:SCALING[:crop]. SIDE is {MIN_SIDE} to "
        f"{MAX_SIDE}; SCALING is one of {', '.join(SCALINGS)}.",
        code="bad_encoder_input",
    )


def scaled(pixels: NDArray[np.uint8], order: str, scaling: str) -> NDArray[np.float32]:
    """The numbers (1, 3, side, side) of a square (side, side, 3) of red, green and blue."""
    mean, divisor = (np.array(part, np.float32) for part in SCALINGS[scaling])
    numbers = (pixels.astype(np.float32) - mean) / divisor
    if order == "bgr":
        numbers = numbers[..., ::-1]
    return np.ascontiguousarray(numbers.transpose(2, 0, 1)[np.newaxis])
