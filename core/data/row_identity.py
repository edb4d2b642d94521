"""Hashes that identify a row, so that it is recognised in another file.

Unlike the digests of ``core.data.repeated_rows`` they depend only on what cells hold, and on nothing else of
their file: the hash is the same for single precision, for numbers stored as text and for sparse rows, and
columns with names may be in any order. Two different rows have the same hash with a probability of about
2⁻⁶⁴.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import scipy.sparse as sp

from core.data.cell_values import TRUTH, number_of
from core.data.repeated_rows import Digests, matrix_digests
from core.data.table import GAP, Cells, PictureCells, Table, TextCells
from core.data.validation import QUIET, row_blocks
from core.errors import InvalidPackage
from core.types import Matrix

_GAP: Final = np.uint64(0x9E3779B97F4A7C15)
_BYTES: Final = np.dtype("<u8")


@QUIET
def matrix_identities(X: Matrix) -> Digests:
    """The number of each row (n, d) of numbers without names, (n,)."""
    if not isinstance(X, np.ndarray):
        parts = (X.data.astype(np.float32), X.indices, X.indptr)
        return matrix_digests(sp.csr_array(parts, shape=X.shape))
    identities = np.empty(len(X), dtype=np.uint64)
    for rows in row_blocks(*X.shape):
        identities[rows] = matrix_digests(X[rows].astype(np.float32))
    return identities


def table_identities(table: Table, names: Sequence[str]) -> Digests:
    """The number of each row of a table by the cells of some columns, (n,). Raises KeyError."""
    identities = np.zeros(table.n, dtype=np.uint64)
    for name in names:
        weight = np.uint64(_of_text(f"column {name}") | 1)
        identities += _of_cells(table.column(name)) * weight
    return identities


def identity_bytes(identities: Digests) -> bytes:
    """The distinct identities, ascending, 8 bytes each, little endian."""
    return np.unique(identities).astype(_BYTES).tobytes()


def identities_from(data: bytes | bytearray | memoryview) -> Digests:
    """The numbers of ``identity_bytes``, a view of ``data``. Raises InvalidPackage."""
    if memoryview(data).nbytes % _BYTES.itemsize:
        raise InvalidPackage("The numbers of rows in the package are cut.")
    return np.frombuffer(data, dtype=_BYTES)


@QUIET
def _of_cells(cells: Cells) -> Digests:
    if isinstance(cells, PictureCells):
        of_pictures = np.full(len(cells.pictures) + 1, _GAP, dtype=np.uint64)
        for place, picture in enumerate(cells.pictures):
            of_pictures[place] = _of_bytes(picture)
        # The code of a gap is −1: the last place.
        return of_pictures[cells.codes]
    if not isinstance(cells, TextCells):
        values = cells.values.astype(np.float32)
        digests = matrix_digests(values.reshape(len(values), -1))
        digests[cells.is_gap] = _GAP
        return digests
    of_texts = np.full(len(cells.texts) + 1, _GAP, dtype=np.uint64)
    for place, text in enumerate(cells.texts):
        of_texts[place] = _of_value(text)
    # The code of a gap is −1: the last place.
    return of_texts[np.where(cells.codes == GAP, len(cells.texts), cells.codes)]


def _of_value(text: str) -> int:
    """The hash of a text, or of its number or truth value, so that the type of the column is irrelevant."""
    bare = text.strip()
    value = number_of(bare)
    if value is None and bare.lower() in TRUTH:
        value = float(TRUTH[bare.lower()])
    if value is None:
        return _of_text(bare)
    return int(matrix_digests(np.array([[value]]).astype(np.float32))[0])


def _of_text(text: str) -> int:
    return _of_bytes(text.encode())


def _of_bytes(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
