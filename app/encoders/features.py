"""The two encoders without a file: arithmetic of NumPy on the pixels of a square, without anything fitted.

Their numbers are the same bits on every processor: sums are of integers or in a fixed order, the random
kernels come from a hash and have small integers, and angles are rounded before anything is added up.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

HLC_SIDE: Final = 64
RND_SIDE: Final = 32
_CELL: Final = 8
_BINS: Final = 9
_ANGLE_STEPS: Final = 256
"""Parts of a bin to which an angle is rounded."""
_CLIP: Final = 0.2
_PATTERNS: Final = 59
_GRID: Final = 4
_KERNELS: Final = 300
_PATCH: Final = 6
_UNIT: Final = 32
"""The integer that stands for a standard deviation of a patch and of a kernel."""
_CONTRAST: Final = 10.0
"""Added to the variance of a patch, so that noise of a flat one is not enlarged."""
_NEIGHBOURS: Final = ((-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1))

Pixels = NDArray[np.uint8]
Vector = NDArray[np.float32]


def hlc(pixels: Pixels) -> Vector:
    """Gradients, patterns and colours (3316) of a square of 64 × 64 × 3 pixels."""
    values = pixels.astype(np.int32)
    return np.concatenate([_gradients(values.sum(2)), _patterns(values.sum(2)), _colours(values)])


def rnd(pixels: Pixels) -> Vector:
    """Answers of 300 random kernels (2400) to a square of 32 × 32 × 3 pixels.

    Of each quadrant the share of patches with a positive answer, then the largest answer.
    """
    kernels, thresholds = _random_kernels()
    windows = np.lib.stride_tricks.sliding_window_view(pixels.astype(np.int32), (_PATCH, _PATCH), (0, 1))
    n, size = windows.shape[0], _PATCH * _PATCH * 3
    patches = windows.reshape(n * n, size)
    mean = patches.sum(1, keepdims=True) / size
    deviation = np.sqrt((patches * patches).sum(1, keepdims=True) / size - mean * mean + _CONTRAST)
    scaled = np.clip(np.rint((patches - mean) * (_UNIT / deviation)), -127, 127).astype(np.float32)
    # Sums of 108 products of integers below 128 are exact in float32, in any order.
    answers = (scaled @ kernels - thresholds).reshape(n, n, _KERNELS)
    half = n // 2 + 1
    first, last = slice(None, half), slice(half, None)
    unit = np.float32(_UNIT * _UNIT * 10)
    parts = []
    for quadrant in (answers[i, j] for i in (first, last) for j in (first, last)):
        count = quadrant.shape[0] * quadrant.shape[1]
        parts.append(np.count_nonzero(quadrant > 0, axis=(0, 1)) / count)
        parts.append(quadrant.max((0, 1)) / unit)
    return np.concatenate(parts).astype(np.float32)


def _gradients(grey: NDArray[np.int32]) -> Vector:
    """Histograms of oriented gradients of cells of 8 × 8 pixels, in blocks of 2 × 2 cells: 7 × 7 × 36."""
    across, down = np.zeros_like(grey), np.zeros_like(grey)
    across[:, 1:-1] = grey[:, 2:] - grey[:, :-2]
    down[1:-1] = grey[2:] - grey[:-2]
    strength = np.sqrt((across * across + down * down).astype(np.float64)) / 3
    angle = np.arctan2(down, across) % np.pi * (_BINS / np.pi)
    steps = np.floor(angle * _ANGLE_STEPS + 0.5).astype(np.int64)
    lower, part = steps // _ANGLE_STEPS, steps % _ANGLE_STEPS / _ANGLE_STEPS
    n = grey.shape[0] // _CELL
    cell = np.arange(grey.shape[0]) // _CELL
    place = (cell[:, None] * n + cell) * _BINS
    total = n * n * _BINS
    bins = np.bincount((place + lower % _BINS).ravel(), ((1 - part) * strength).ravel(), total)
    bins += np.bincount((place + (lower + 1) % _BINS).ravel(), (part * strength).ravel(), total)
    cells = bins.reshape(n, n, _BINS).transpose(2, 0, 1)
    # The first axis is the one of sums: NumPy adds its rows one after the other on every processor.
    blocks = np.concatenate([cells[:, :-1, :-1], cells[:, 1:, :-1], cells[:, :-1, 1:], cells[:, 1:, 1:]])
    blocks = blocks / np.sqrt(np.add.reduce(blocks * blocks, 0) + 1)
    blocks = np.minimum(blocks, _CLIP)
    blocks = blocks / np.sqrt(np.add.reduce(blocks * blocks, 0) + 1e-3)
    return np.asarray(blocks.transpose(1, 2, 0).ravel(), np.float32)


def _patterns(grey: NDArray[np.int32]) -> Vector:
    """Local binary patterns: which of the eight neighbours are as bright; roots of shares in 4 × 4 parts."""
    centre = grey[1:-1, 1:-1]
    n = centre.shape[0]
    codes = np.zeros_like(centre)
    for bit, (dy, dx) in enumerate(_NEIGHBOURS):
        codes |= (grey[1 + dy : 1 + dy + n, 1 + dx : 1 + dx + n] >= centre).astype(np.int32) << bit
    part = np.arange(n) * _GRID // n
    place = (part[:, None] * _GRID + part) * _PATTERNS + _pattern_numbers()[codes]
    counts = np.bincount(place.ravel(), minlength=_GRID * _GRID * _PATTERNS)
    return np.asarray(np.sqrt(counts / (n * n / _GRID**2)), np.float32)


@cache
def _pattern_numbers() -> NDArray[np.int64]:
    """The number of each code of eight bits: one for all that change more than twice around the circle."""
    numbers = np.full(256, _PATTERNS - 1)
    turned = [code ^ (code >> 1 | (code & 1) << 7) for code in range(256)]
    uniform = [code for code in range(256) if turned[code].bit_count() <= 2]
    numbers[uniform] = np.arange(len(uniform))
    return numbers


def _colours(values: NDArray[np.int32]) -> Vector:
    """Moments of brightness and two colour differences by 4 × 4 parts, and the shares of 512 colours."""
    red, green, blue = np.moveaxis(values, 2, 0)
    opponents = np.stack([red + green + blue, red - green, red + green - 2 * blue], 2)
    unit = 255 * np.array([3.0, 1.0, 2.0])
    side = values.shape[0] // _GRID
    parts = opponents.reshape(_GRID, side, _GRID, side, 3)
    count = side * side
    mean = parts.sum((1, 3)) / count
    deviation = np.sqrt(np.maximum((parts * parts).sum((1, 3)) / count - mean * mean, 0))
    moments = np.concatenate([mean / unit, deviation / unit], 2).ravel()
    shades = np.bincount((red // 32 * 64 + green // 32 * 8 + blue // 32).ravel(), minlength=512)
    return np.concatenate([moments, np.sqrt(shades / values[..., 0].size)]).astype(np.float32)


@cache
def _random_kernels() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Kernels (108 × 300) of integers, nearly normal, and the threshold of each (300); the same for ever."""
    size = _PATCH * _PATCH * 3
    stream = hashlib.shake_256(b"stms encoder rnd.1").digest(4 * size * _KERNELS + 2 * _KERNELS)
    numbers = np.frombuffer(stream, np.uint8)
    # The sum of four bytes has the mean 510 and the deviation 147.8.
    sums = numbers[: 4 * size * _KERNELS].reshape(size, _KERNELS, 4).sum(2, dtype=np.int64)
    kernels = np.rint((sums - 510) * _UNIT / 147.8)
    kernels -= np.rint(kernels.sum(0) / size)
    uniform = numbers[4 * size * _KERNELS :].reshape(_KERNELS, 2).astype(np.int64)
    # The thresholds are uniform between -1 and 1 deviations of an answer, and never an integer: no ties.
    thresholds = np.rint((uniform @ [256, 1] / 32768 - 1) * _UNIT * _UNIT * 10) + 0.5
    return np.clip(kernels, -127, 127).astype(np.float32), thresholds.astype(np.float32)
