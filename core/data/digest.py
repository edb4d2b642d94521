"""The digest by which two data sets are known to be the same."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from core.data.dataset import LabelledData


def data_digest(data: LabelledData) -> str:
    """SHA-256 of rows, labels, class names and extras, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    X: Any = data.X
    for array in (X,) if isinstance(X, np.ndarray) else (X.data, X.indices, X.indptr):
        digest.update(f"{array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    digest.update(np.ascontiguousarray(data.y, dtype=np.int64).data)
    digest.update("\0".join((str(data.d), *data.classes)).encode())
    for name, array in data.extras.arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    digest.update("".join(f"{view.name}\0{view.start}:{view.stop};" for view in data.views).encode())
    if data.layout is not None:
        digest.update(repr(data.layout).encode())
    return digest.hexdigest()
