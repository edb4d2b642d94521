"""Parser of ``multipart/form-data`` with one file (RFC 7578), which is written while it arrives."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.domain.errors import InvalidRequest
from app.domain.names import find_unusable
from app.http.parameters import check_known

_MAX_FIELD_BYTES: Final = 4096


def boundary_of(content_type: str) -> bytes:
    """The boundary in a Content-Type header. Raises InvalidRequest."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= 200:
        raise _malformed("its Content-Type has no boundary")
    return boundary


class FormReader:
    """Incremental parser: the content of the file goes to ``write``, text fields to ``fields``.

    known: names of the text fields that there are; the file may have any name. lists: those of them that may
    occur several times, which is the same as once with commas between the texts. filename, content_type: from
    the headers of the file's part. Raises InvalidRequest for invalid forms, also those with other fields.
    """

    def __init__(
        self,
        boundary: bytes,
        known: Collection[str],
        write: Callable[[bytes], object],
        lists: Collection[str] = (),
    ) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.content_type = ""
        self._known = known
        self._lists = lists
        self._write = write
        self._has_file = False
        self._ended = False
        self._in_file = False
        self._name = ""
        self._text = bytearray()
        self._header = bytearray()
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    def feed(self, data: bytes) -> None:
        """Parse the next piece of the body."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(str(error)) from error

    def finish(self) -> None:
        """Raise InvalidRequest unless the form is complete and has a file."""
        if not self._ended:
            raise InvalidRequest("The form ends before its last boundary.", code="truncated_upload")
        if not self._has_file:
            raise InvalidRequest("The form has no file.", code="no_file")

    def _on_part_begin(self) -> None:
        self._headers = {}
        self._text.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in options:
            raise _malformed("a part does not name its field")
        self._name = _text(options[b"name"], "the name of a field")
        self._in_file = b"filename" in options
        if self._in_file:
            if self._has_file:
                raise _malformed("it has more than one file")
            self._has_file = True
            self.filename = _text(options[b"filename"], "the name of the file")
            content_type = self._headers.get(b"content-type", b"").decode("latin-1")
            self.content_type = content_type.partition(";")[0].strip().lower()
        else:
            check_known([self._name], self._known, noun="field")
            if self._name in self.fields and self._name not in self._lists:
                raise _malformed(f"field {self._name!r} occurs twice")

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._write(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _MAX_FIELD_BYTES:
            raise _malformed(f"field {self._name!r} is longer than {_MAX_FIELD_BYTES} bytes")

    def _on_part_end(self) -> None:
        if not self._in_file:
            parts = (self.fields.get(self._name, ""), _text(self._text, f"field {self._name!r}"))
            self.fields[self._name] = ",".join(part for part in parts if part)

    def _on_end(self) -> None:
        self._ended = True


def _text(data: bytes | bytearray, what: str) -> str:
    """Text of the form. Raises InvalidRequest if nothing could store it."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(f"{what} is not UTF-8") from error
    if (found := find_unusable(text)) is not None:
        raise _malformed(f"{what} holds {found}")
    return text


def _malformed(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The form cannot be read: {reason}.", code="malformed_form")
