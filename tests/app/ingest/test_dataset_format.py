from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from safetensors.numpy import load

from app.ingest.dataset_format import decode, encode
from core.data.dataset import LabelledData


def data(*, sparse: bool, dtype: type, n: int = 7) -> LabelledData:
    X = np.random.default_rng(n).normal(size=(n, 3)).astype(dtype)
    X[X < 0] = 0
    return LabelledData.from_arrays(
        sp.csr_array(X) if sparse else X, [*(["Käse", "犬"] * n)[:n]], ("größe", "b", "c"), min_per_class=1
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("with_test", [True, False])
def test_data_come_back_as_they_were(sparse: bool, dtype: type, with_test: bool) -> None:
    parts = data(sparse=sparse, dtype=dtype), data(sparse=sparse, dtype=dtype, n=5) if with_test else None
    content = b"".join(encode(*parts))
    assert max(map(len, encode(*parts))) <= 1024**2
    for part, again in zip(parts, decode(bytearray(content)), strict=True):
        assert (part is None) == (again is None)
        if part is None or again is None:
            continue
        assert again.X.dtype == dtype
        assert abs(part.X - again.X).max() == 0
        assert sp.issparse(again.X) == sparse
        np.testing.assert_array_equal(part.y, again.y)
        assert (part.classes, part.feature_names) == (again.classes, again.feature_names)


def test_the_file_is_what_safetensors_reads() -> None:
    train = data(sparse=False, dtype=np.float32)
    arrays = load(b"".join(encode(train, None)))
    np.testing.assert_array_equal(arrays["train.X"], train.X)
    np.testing.assert_array_equal(arrays["train.y"], train.y)


def test_another_safetensors_file_is_no_data_set() -> None:
    with pytest.raises(ValueError, match="not a data set"):
        decode(bytearray((2).to_bytes(8, "little") + b"{}"))
