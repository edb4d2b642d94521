"""The example data set: scikit-learn's handwritten digits, which every installation has as a file."""

from __future__ import annotations

import gzip
import io
import secrets
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

from app.domain.entities import Dataset
from app.domain.errors import Unavailable
from app.ingest.orders import DatasetContent, DatasetOrder
from app.services.datasets import register_dataset
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store

NAME: Final = "handwritten digits (example)"
_SIDE: Final = 8
_TEST_EVERY: Final = 4
"""For each class, one in this many rows is in the test part."""


def register_example(
    store: Store,
    files: BlobCache,
    *,
    created_by: str,
    limits: Settings,
    read: Callable[[DatasetOrder], DatasetContent],
) -> tuple[Dataset, bool]:
    """Store the example in the same way as an upload of its file; raises as `register_dataset`."""
    with files.writing(f"stms-example-{secrets.token_hex(8)}.tmp") as file:
        file.write(digits_file())
        return register_dataset(
            store,
            files,
            file,
            created_by=created_by,
            limits=limits,
            name=NAME,
            filename="digits.npz",
            file_format="npz",
            read=read,
        )


def digits_file() -> bytes:
    """1797 images of 8 × 8 pixels in ten classes, with a test part, as an .npz file; always the same bytes.

    Raises Unavailable if scikit-learn is installed without its data sets.
    """
    spec = find_spec("sklearn")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    try:
        text = gzip.decompress((folder / "datasets" / "data" / "digits.csv.gz").read_bytes())
    except OSError as error:
        message = "The example data set is not installed with this server. Upload a file of your own."
        raise Unavailable(message, code="no_example") from error
    table = np.array([line.split(b",") for line in text.split()], dtype=np.float64)
    X, y = table[:, :-1], table[:, -1].astype(np.int64)
    place = np.zeros(len(y), dtype=np.int64)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        place[rows] = np.arange(len(rows))
    test = place % _TEST_EVERY == _TEST_EVERY - 1
    names = [f"row {row}, column {column}" for row in range(_SIDE) for column in range(_SIDE)]
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        X_train=X[~test],
        y_train=y[~test],
        X_test=X[test],
        y_test=y[test],
        feature_names=np.array(names),
    )
    return buffer.getvalue()
