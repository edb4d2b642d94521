"""Stored data sets with other labels: all arrays but the labels are copied as they are, without SciPy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from app.ingest.dataset_rows import DTYPES
from core.errors import InvalidPackage
from core.packed.codec import safetensors_header

_CHUNK_BYTES = 1024**2


def relabelled(
    buffer: bytearray | memoryview,
    codes: NDArray[np.int32],
    classes: Sequence[str],
    before: Sequence[str],
) -> Iterator[bytes]:
    """The file of `app.ingest.dataset_format` with other labels of the training part, in chunks.

    codes: (n,), −1 without a label. before: the classes of the file, by which its test part is coded.
    Raises InvalidPackage if the test part has a class that is not in ``classes``.
    """
    view = memoryview(buffer)
    length = int.from_bytes(view[:8], "little")
    index = json.loads(bytes(view[8 : 8 + length]))
    metadata, body = index.pop("__metadata__"), view[8 + length :]
    arrays = {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], dtype=DTYPES[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in index.items()
    }
    names = json.loads(arrays["names"].tobytes()) | {"classes": list(classes)}
    text = json.dumps(names, ensure_ascii=False, separators=(",", ":")).encode()
    arrays |= {"train.y": codes, "names": np.frombuffer(text, dtype=np.uint8)}
    if "test.y" in arrays:
        arrays["test.y"] = _recoded(arrays["test.y"], classes, before)
    return _pieces(metadata, arrays)


def _pieces(metadata: dict[str, str], arrays: dict[str, NDArray[np.generic]]) -> Iterator[bytes]:
    # The widest items come first, so that every array begins at a multiple of its item size.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header, _ = safetensors_header(metadata, ((name, one.dtype, one.shape) for name, one in ordered))
    yield header
    for _, array in ordered:
        content = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(content), _CHUNK_BYTES):
            yield bytes(content[start : start + _CHUNK_BYTES])


def _recoded(codes: NDArray[np.int32], classes: Sequence[str], before: Sequence[str]) -> NDArray[np.int32]:
    place = {name: code for code, name in enumerate(classes)}
    table = np.array([place.get(name, -1) for name in before], dtype=np.int32)
    recoded: NDArray[np.int32] = table[codes]
    if (recoded < 0).any():
        missing = before[int(codes[recoded < 0][0])]
        raise InvalidPackage(f"The test part has rows of the class {missing!r:.80}, which is gone.")
    return recoded
