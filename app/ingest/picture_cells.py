"""Cells of pictures in files of any format: bytes, base64, data URLs; what is no picture is named."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault
from app.encoders.checks import check_picture
from app.encoders.faults import PictureFault, require_images
from app.ingest.raw import invalid_file, invalid_rows
from core.data.table import GAP, ByteStrings, PictureCells

COLUMN: Final = "image"
"""The name of the column of pictures where a file names none."""
MAX_PICTURE_FAULTS: Final = 100
"""Most faulty pictures that one answer lists."""
_DATA_URL: Final = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w=.+-]+)*?;base64,", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"\s*(?:https?|ftp|s3|gs|file)://", re.IGNORECASE)
_BLANKS: Final = re.compile(r"\s+")


class BadPicture(Exception):
    """A cell that is no picture. code: a stable word. The text says what it is and what to send."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PictureCollector:
    """Collects the pictures of rows one after the other; equal ones are kept once.

    buffer: (most,) uint8, for the bytes of all of them.
    """

    def __init__(self, buffer: NDArray[np.uint8]) -> None:
        self._buffer = buffer
        self._places: dict[bytes, int] = {}
        self._codes: list[int] = []
        self._ends: list[int] = [0]

    def add(self, picture: bytes | None) -> None:
        """The picture of the next row; None for a gap."""
        if picture is None:
            self._codes.append(GAP)
            return
        key = sha256(picture).digest()
        place = self._places.setdefault(key, len(self._places))
        if place == len(self._ends) - 1:
            start, end = self._ends[-1], self._ends[-1] + len(picture)
            self._buffer[start:end] = np.frombuffer(picture, dtype=np.uint8)
            self._ends.append(end)
        self._codes.append(place)

    def cells(self) -> PictureCells:
        """The cells of all rows."""
        pictures = ByteStrings(self._buffer[: self._ends[-1]], np.array(self._ends, dtype=np.int64))
        return PictureCells(np.array(self._codes, dtype=np.int32), pictures)


def check_picture_cell(data: bytes) -> tuple[str, str] | None:
    """Code and sentence of what is wrong with the bytes of a picture by their head; None if nothing is."""
    try:
        check_picture(data)
    except PictureFault as fault:
        return fault.code, fault.message
    return None


def picture_of_text(text: str) -> bytes:
    """The bytes of a picture that is a data URL or base64. Raises BadPicture."""
    if _ADDRESS.match(text):
        what = "is an address. The server fetches nothing: send the bytes of the picture, such as base64."
        raise BadPicture("image_is_address", what)
    found = _DATA_URL.match(text)
    if found is None and text[:5].lower() == "data:":
        raise BadPicture("bad_base64", "is a data URL without base64, which is not read.")
    code = text[found.end() :] if found else text
    try:
        data = base64.b64decode(_BLANKS.sub("", code), validate=True)
    except (binascii.Error, ValueError) as error:
        what = "is neither base64 nor a data URL. A path is not read: send the bytes of the picture."
        raise BadPicture("bad_base64", what) from error
    if not data:
        raise BadPicture("bad_base64", "is empty.")
    return data


def picture_of_value(value: Any) -> bytes:
    """The bytes of a picture that is bytes or a text. Raises BadPicture."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return picture_of_text(value)
    raise BadPicture("wrong_type", "is no picture: send bytes, base64 or a data URL.")


def picture_cells(values: Iterable[Any]) -> PictureCells:
    """The cells of a column of pictures; None and blank texts are gaps.

    Raises InvalidRequest that names rows and why their pictures are refused.
    """
    require_images()
    faults: list[InputFault] = []
    cells: list[bytes | None] = []
    for row, value in enumerate(values):
        if value is None or (isinstance(value, str) and not value.strip()):
            cells.append(None)
            continue
        try:
            data = picture_of_value(value)
        except BadPicture as error:
            found: tuple[str, str] | None = (error.code, f"the cell {error}")
            data = b""
        else:
            found = check_picture_cell(data)
        if found is not None:
            message = f"Row {row} (counted from 0): {found[1]}"
            faults.append(InputFault("X", found[0], message, row=row))
            if len(faults) == MAX_PICTURE_FAULTS:
                break
        cells.append(data)
    if faults and faults[0].code == "image_is_address":
        raise invalid_file(faults[0].message, code="image_is_address", faults=faults)
    if faults:
        raise invalid_rows(faults)
    return PictureCells.of(cells)
