"""Damaged files of every format give either valid data or a clear error."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import save

from app.domain.errors import ServiceError
from core.encoding.labelled_table import LabelledTable

X = np.random.default_rng(0).normal(size=(12, 3))
Y = np.arange(12) % 2
NOISE = [b"\n", b'"', b",", b"nan", b":", b"\0", b"1e999", b"-", b"9999999999", b"\xff"]


def saved(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "npz":
        np.savez(out, X=X, y=Y, class_names=["a", "b"])
    elif kind == "safetensors":
        out.write(save({"X": X, "y": Y, "privileged": X}, {"class_names": '["a", "b"]'}))
    elif kind == "npy":
        np.save(out, np.column_stack([X, Y]))
    elif kind == "parquet":
        parquet.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": ["u", "ü"] * 6}), out)
    elif kind == "csv":
        rows = (f"{a},{b},{'uü'[k % 2]}" for k, (a, b, _) in enumerate(X))
        out.write("\n".join(["a,b,y", *rows]).encode())
    else:
        out.write("\n".join(f"{k % 2} 1:{a} 3:{b}" for k, (a, b, _) in enumerate(X)).encode())
    return out.getvalue()


def damaged(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.randint(1, 5)):
        place = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                data[place] ^= 1 << chance.randrange(8)
            case 2:
                data[place:place] = chance.choice(NOISE)
            case _:
                del data[place : min(place + chance.randint(1, 20), len(data) - 1)]
    return bytes(data)


@pytest.mark.parametrize("kind", ["csv", "svmlight", "npz", "npy", "safetensors", "parquet"])
def test_a_damaged_file_gives_checked_data_or_a_clear_error(ingest: Any, kind: str) -> None:
    content, chance = saved(kind), random.Random(0)
    outcomes = [outcome(ingest, damaged(content, chance), kind) for _ in range(300)]
    assert set(outcomes) <= {"checked", "refused"}
    assert outcomes.count("refused") > 50


def outcome(ingest: Any, content: bytes, kind: str) -> str:
    try:
        train, _, _ = ingest(content, declared=kind)
    except ServiceError as error:
        return "refused" if error.message and error.reason else "refused without a word"
    if isinstance(train, LabelledTable):
        # Damaged cells of numbers are missing values or texts.
        return "checked"
    return "checked" if np.isfinite(train.X.sum()) else "not finite"
