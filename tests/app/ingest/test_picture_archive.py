"""ZIP archives of pictures, and pictures in tables: what is read, and by which code the rest is refused."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.domain.errors import ServiceError
from app.ingest.dataset_format import decode
from app.ingest.options import ReadingOptions
from app.ingest.orders import DatasetContent, DatasetOrder
from app.ingest.reading import read_dataset
from core.data.table import PictureCells
from tests.made_pictures import members, packed, picture

Read = Callable[..., tuple[DatasetContent, Any]]

RNG = np.random.default_rng(2)
DISC = picture("disc", RNG)
FILES = members(2, shapes=("disc", "square"))


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a file as an upload is read; gives what is said of it, and both parts."""

    def of(content: bytes, name: str = "pictures.zip", **said: str) -> tuple[DatasetContent, Any]:
        source, rows = tmp_path / name, tmp_path / "rows"
        source.write_bytes(content)
        options = ReadingOptions.parse(**said)
        order = DatasetOrder(str(source), str(rows), None, name, 10**6, 10**4, 2**30, str(tmp_path), options)
        return read_dataset(order), decode(bytearray(rows.read_bytes()))

    return of


def table_of(lines: list[str]) -> bytes:
    return "\n".join(lines).encode()


METADATA = table_of(["file_name,label", "disc/000.jpeg,round", "disc/001.jpeg,round"] + [
    f"square/{number:03}.jpeg,edged" for number in range(2)
])  # fmt: skip
LAYOUTS: dict[str, tuple[dict[str, bytes], int, tuple[str, ...]]] = {
    "folders": (FILES, 0, ("disc", "square")),
    "one folder around": ({f"all/{name}": one for name, one in FILES.items()}, 0, ("disc", "square")),
    "two parts": (
        {f"{part}/{name}": one for part in ("train", "val") for name, one in FILES.items()},
        4,
        ("disc", "square"),
    ),
    "metadata": ({**FILES, "metadata.csv": METADATA}, 0, ("edged", "round")),
    "hidden and others": (
        {**FILES, "__MACOSX/disc/._1.jpg": b"x", "disc/Thumbs.db": b"x", "README.txt": b"x"},
        0,
        ("disc", "square"),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(read: Read, layout: str):
    files, tested, classes = LAYOUTS[layout]
    content, (train, _) = read(packed(files))
    assert (content.source_format, content.rows, content.test_rows) == ("zip", 4, tested)
    assert content.classes == classes
    cells = train.table.column("image")
    assert isinstance(cells, PictureCells)
    assert sorted(cells.pictures) == sorted(FILES.values())
    codes = {one["code"] for one in content.summary["warnings"]}
    is_untidy = layout == "hidden and others"
    assert ({"hidden_files", "other_files"} <= codes) == is_untidy


def test_equal_pictures_are_kept_once(read: Read):
    content, (train, _) = read(packed({"a/1.jpg": DISC, "a/2.jpg": DISC, **FILES}))
    assert content.rows == 6
    assert len(train.table.column("image").pictures) == 5


def encrypted() -> bytes:
    content = bytearray(packed(FILES))
    for at in range(len(content)):
        if content[at : at + 4] == b"PK\x01\x02":
            content[at + 8] |= 1
    return bytes(content)


def linked() -> bytes:
    buffer = io.BytesIO(packed(FILES))
    with zipfile.ZipFile(buffer, "a") as archive:
        info = zipfile.ZipInfo("disc/link.jpg")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    return buffer.getvalue()


def doubled() -> bytes:
    buffer = io.BytesIO(packed(FILES))
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("disc/000.jpeg", DISC)
    return buffer.getvalue()


def bzipped() -> bytes:
    buffer = io.BytesIO(packed(FILES))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("disc/9.jpg", DISC, zipfile.ZIP_BZIP2)
    return buffer.getvalue()


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "no folders": (lambda: packed({"1.jpg": DISC, "2.jpg": DISC}), "no_classes"),
    "one class": (lambda: packed({"a/1.jpg": DISC, "a/2.jpg": DISC}), "no_classes"),
    "encrypted": (encrypted, "encrypted_member"),
    "link": (linked, "link_in_archive"),
    "outside": (lambda: packed({**FILES, "../x.jpg": DISC}), "bad_member_name"),
    "twice": (doubled, "duplicate_member"),
    "nested": (lambda: packed({**FILES, "disc/more.zip": DISC}), "nested_archive"),
    "method": (bzipped, "unsupported_compression"),
    "bomb": (lambda: packed({**FILES, "disc/9.png": bytes(10**7)}), "suspicious_ratio"),
    "gif": (lambda: packed({**FILES, "disc/9.jpg": b"GIF89a" + bytes(60)}), "unsupported_image"),
    "small": (lambda: packed({**FILES, "disc/9.png": picture_of(4)}), "image_too_small"),
    "metadata": (lambda: packed({"metadata.csv": b"a,b\n1,2\n", "1.jpg": DISC}), "bad_metadata"),
    "absent": (
        lambda: packed({"metadata.csv": b"file_name,label\n9.jpg,a\n", "1.jpg": DISC}),
        "missing_file",
    ),
    "damaged": (lambda: packed(FILES).replace(b"PK\x03\x04", b"PK\x03\x05"), "wrong_format"),
}


def picture_of(side: int) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(read: Read, case: str):
    make, code = REFUSED[case]
    with pytest.raises(ServiceError) as caught:
        read(make())
    assert code in {caught.value.reason, *(fault.code for fault in caught.value.faults)}, caught.value


def test_too_many_members_and_too_much_metadata_are_refused(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.ingest.picture_archive.MAX_ENTRIES", 3)
    with pytest.raises(ServiceError) as caught:
        read(packed(FILES))
    assert caught.value.reason == "too_many_entries"
    monkeypatch.undo()
    monkeypatch.setattr("app.ingest.picture_archive.MAX_METADATA_BYTES", 3)
    with pytest.raises(ServiceError) as caught:
        read(packed({**FILES, "metadata.csv": METADATA}))
    assert caught.value.reason == "metadata_too_large"


def test_a_damaged_member_is_said(read: Read):
    content = bytearray(packed(FILES))
    content[60:80] = bytes(20)
    with pytest.raises(ServiceError) as caught:
        read(bytes(content))
    assert caught.value.reason == "broken_archive"


def of_tables() -> dict[str, tuple[str, bytes]]:
    pictures = [(picture(shape, RNG), shape) for shape in ("disc", "square") for _ in range(3)]
    texts = [(base64.b64encode(data).decode(), shape) for data, shape in pictures]

    def parquet(column: list[Any]) -> bytes:
        buffer = io.BytesIO()
        pq.write_table(pa.table({"photo": column, "label": [shape for _, shape in pictures]}), buffer)
        return buffer.getvalue()

    return {
        "csv": ("p.csv", table_of(["photo,label", *(f"{text},{shape}" for text, shape in texts)])),
        "data url": (
            "p.jsonl",
            table_of(
                [
                    json.dumps({"photo": f"data:image/jpeg;base64,{text}", "label": shape})
                    for text, shape in texts
                ]
            ),
        ),
        "bytes": ("p.parquet", parquet([data for data, _ in pictures])),
        "struct": ("p.parquet", parquet([{"bytes": data, "path": "x.jpg"} for data, _ in pictures])),
    }


def test_all_tables_have_the_same_pictures(read: Read):
    stored = []
    for name, content in of_tables().values():
        document, (train, _) = read(content, name, columns="photo:image", label_column="label")
        assert [column["kind"] for column in document.summary["schema"]] == ["image"]
        cells = train.table.column("photo")
        stored.append((cells.codes.tolist(), list(cells.pictures)))
    assert all(one == stored[0] for one in stored)


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("https://example.org/1.jpg", "image_is_address"),
        ("pictures/1.jpg!", "bad_base64"),
        ("data:image/png;utf8", "bad_base64"),
        (base64.b64encode(b"no picture at all").decode(), "unsupported_image"),
    ],
)
def test_cells_that_are_no_pictures(read: Read, cell: str, code: str):
    lines = ["photo,label", *(f'"{cell}",{label}' for label in "aabb")]
    with pytest.raises(ServiceError) as caught:
        read(table_of(lines), "p.csv", columns="photo:image", label_column="label")
    assert code in {caught.value.reason, *(fault.code for fault in caught.value.faults)}


def test_a_struct_without_bytes_is_refused(read: Read):
    buffer = io.BytesIO()
    rows = [{"bytes": base64.b64encode(b"").decode(), "path": "a.jpg"}] * 4
    pq.write_table(pa.table({"photo": rows, "label": ["a", "a", "b", "b"]}), buffer)
    with pytest.raises(ServiceError) as caught:
        read(buffer.getvalue(), "p.parquet")
    assert caught.value.faults
