"""The parser of forms: complete forms in any pieces, and errors for invalid ones."""

from __future__ import annotations

import httpx
import pytest

from app.api.multipart import FormReader, boundary_of
from app.domain.errors import InvalidRequest
from tests.refusals import refused_as


def form(**parts: object) -> tuple[bytes, bytes]:
    """A body made by a client that we did not write, and its boundary."""
    request = httpx.Request("POST", "http://test", files=parts)  # type: ignore[arg-type]
    return request.read(), boundary_of(request.headers["content-type"])


def read(body: bytes, boundary: bytes, step: int = 10_000) -> tuple[bytes, FormReader]:
    written = bytearray()
    reader = FormReader(boundary, ("name",), written.extend)
    for start in range(0, len(body), step):
        reader.feed(body[start : start + step])
    reader.finish()
    return bytes(written), reader


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_form_is_parsed_from_pieces_of_any_size(step: int):
    content = bytes(range(256)) * 20 + b"\r\n--almost the boundary\r\n"
    body, boundary = form(name=(None, "größe"), file=("daten ä.csv", content, "text/CSV; charset=utf-8"))
    written, reader = read(body, boundary, step)
    assert written == content
    assert reader.fields == {"name": "größe"}
    assert reader.filename == "daten ä.csv"
    assert reader.content_type == "text/csv"


def test_a_form_truncated_anywhere_is_rejected():
    body, boundary = form(file=("a.csv", b"1,2\n3,4\n"))
    whole = body.rindex(b"--" + boundary + b"--") + len(boundary) + 4
    for end in range(whole):
        with pytest.raises(InvalidRequest):
            read(body[:end], boundary)


@pytest.mark.parametrize(
    ("parts", "words", "code"),
    [
        ({"name": (None, "x")}, "no file", "no_file"),
        ({"a": ("a", b"1"), "b": ("b", b"2")}, "more than one file", "malformed_form"),
        ({"name": (None, "x" * 5000), "file": ("a", b"1")}, "longer than", "malformed_form"),
        ({"nam": (None, "x"), "file": ("a", b"1")}, "There is no field 'nam', only name.", "unknown_field"),
    ],
)
def test_forms_without_exactly_one_file_are_rejected(parts: dict[str, object], words: str, code: str):
    with refused_as(InvalidRequest, code, match=words):
        read(*form(**parts))


def test_a_body_that_is_not_a_form_is_rejected():
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read(b"hello, this is no form at all", b"abc")
    with pytest.raises(InvalidRequest, match="does not name its field"):
        read(b"--abc\r\nContent-Type: text/csv\r\n\r\n1\r\n--abc--\r\n", b"abc")
    with pytest.raises(InvalidRequest, match="boundary"):
        boundary_of("multipart/form-data")


@pytest.mark.parametrize("name", [b"X-A: " + b"a" * 9000, b"A" * 9000 + b": b", b"X-A: b\r\n" * 2000])
def test_headers_of_a_part_are_bounded(name: bytes):
    with pytest.raises(InvalidRequest, match=r"Maximum header (size|count) exceeded"):
        read(b"--abc\r\n" + name, b"abc", 1000)


def test_a_field_that_occurs_twice_is_refused():
    part = b'--abc\r\nContent-Disposition: form-data; name="name"\r\n\r\n\r\n'
    with pytest.raises(InvalidRequest, match="field 'name' occurs twice"):
        read(part * 2, b"abc")


def test_a_form_without_boundary_or_file_is_a_problem(client, problem):
    headers = {"content-type": "multipart/form-data"}
    problem(client.post("/v1/datasets", content=b"x", headers=headers), 400, "malformed_form")
    headers = {"content-type": "multipart/form-data; boundary=abc"}
    problem(client.post("/v1/datasets", content=b"--abc\r\n", headers=headers), 400, "truncated_upload")


@pytest.mark.parametrize("path", ["/v1/datasets", "/v1/teachers?model=pets"])
def test_an_unknown_field_of_an_upload_is_refused_with_those_that_there_are(client, problem, path):
    parts = {"label": (None, "a"), "file": ("a.csv", b"x,label\n1,a\n2,b\n")}
    document = problem(client.post(path, files=parts), 400, "unknown_field")
    assert document["detail"].startswith("There is no field 'label'")
    assert ("label_column" in document["detail"]) == path.endswith("datasets")


def test_a_field_that_is_a_list_may_occur_several_times() -> None:
    boundary = b"x"
    part = b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    kinds = [part % (b"kinds", b"", text) for text in (b"", b"a:text", b"", b"b:number")]
    body = b"".join([*kinds, part % (b"file", b'; filename="a"', b"1"), b"--x--\r\n"])
    reader = FormReader(boundary, ("kinds",), bytearray().extend, ("kinds",))
    reader.feed(body)
    reader.finish()
    assert reader.fields == {"kinds": "a:text,b:number"}
    with pytest.raises(InvalidRequest, match="occurs twice"):
        FormReader(boundary, ("kinds",), bytearray().extend).feed(body)
