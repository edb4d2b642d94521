from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.errors import UnsupportedFormat
from app.domain.file_formats import TRAITS, FileFormat
from app.ingest.formats import detect

CSV, SVMLIGHT = b"1,2,x\n3,4,y\n", b"# comment\n\n+1 1:2 3:4\n"
SAFETENSORS = (2).to_bytes(8, "little") + b"{}"
NPY, PARQUET = b"\x93NUMPY...", b"PAR1..."
_BYTES = io.BytesIO()
np.savez(_BYTES, X=np.ones((2, 2)))
NPZ = _BYTES.getvalue()


@pytest.mark.parametrize(
    ("content", "declared", "filename", "found"),
    [
        (CSV, None, None, FileFormat.CSV),
        (SVMLIGHT, None, None, FileFormat.SVMLIGHT),
        (SVMLIGHT, None, "a.csv", FileFormat.CSV),
        (CSV, "SVMlight", "a.csv", FileFormat.SVMLIGHT),
        (CSV, None, "data.TSV", FileFormat.CSV),
        (CSV, None, "data.txt", FileFormat.CSV),
        (NPZ, None, None, FileFormat.NPZ),
        (SAFETENSORS, None, None, FileFormat.SAFETENSORS),
        (NPY, None, "a.npy", FileFormat.NPY),
        (PARQUET, "parquet", None, FileFormat.PARQUET),
        (PARQUET, None, "upload.bin", FileFormat.PARQUET),
    ],
)
def test_a_format_is_what_is_said_then_the_name_then_the_content(
    tmp_path: Path, content: bytes, declared: str | None, filename: str | None, found: FileFormat
) -> None:
    (tmp_path / "f").write_bytes(content)
    assert detect(tmp_path / "f", declared=declared, filename=filename) is found


@pytest.mark.parametrize(
    ("content", "declared", "message"),
    [
        (NPZ, "csv", "declared as csv, but its content is npz"),
        (SAFETENSORS, "npz", "declared as npz, but its content is safetensors"),
        (CSV, "parquet", "declared as parquet, but its content is text"),
        (CSV, "xlsx", "'xlsx' is not supported; use one of csv, jsonl, parquet, "),
        ("a,b\n".encode("utf-16"), "parquet", "declared as parquet, but its content is UTF-16 text"),
        ('{"a": 1}\n'.encode("utf-16"), None, "UTF-16 text, of which only CSV is read. Save it as UTF-8"),
        (b'{"a": 1, "y": "u"}\n', "csv", r"its content is jsonl.*say format=jsonl \(--format jsonl\)"),
        (b"@relation r\n", "csv", "its content is arff"),
        (b"\x00\x01\x02\x03", "csv", "binary, in a format that is not supported"),
    ],
)
def test_a_file_of_the_wrong_kind_is_not_read(
    tmp_path: Path, content: bytes, declared: str | None, message: str
) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(UnsupportedFormat, match=message):
        detect(tmp_path / "f", declared=declared, filename=None)


def test_every_format_has_traits_in_the_order_of_all_lists() -> None:
    assert list(TRAITS) == list(FileFormat)


LOADED_BY_READERS = """
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from app.domain.errors import ServiceError
from app.domain.file_formats import FileFormat
from app.ingest import formats
from app.ingest.raw import DatasetLimits
from app.processes.file_reader_main import _LIBRARIES
for library in _LIBRARIES:
    import_module(library)
loaded = set(sys.modules)
for kind in FileFormat:
    with suppress(OSError, ServiceError):
        formats.read(Path("there-is-no-such-file"), kind, DatasetLimits(1, 1, 1))
print(*{name for name in sys.modules if name.startswith("app.")} - loaded)
"""


def test_readers_are_loaded_before_a_process_is_forked_for_each_file() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY_READERS], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "", "name them in app/processes/file_reader_main.py"


def test_a_wide_svmlight_line_is_recognised(ingest: Any) -> None:
    line = b"1 " + b" ".join(b"%d:1" % k for k in range(1, 2001)) + b"\n"
    train, _, _ = ingest(line * 2 + line.replace(b"1 ", b"2 ", 1) * 2)
    assert train.d == 2000
