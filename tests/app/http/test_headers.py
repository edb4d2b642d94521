"""Names in the headers of responses."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from app.http.headers import attachment


def test_a_plain_name_stays_as_it_is():
    assert attachment("pets-latest.csv") == 'attachment; filename="pets-latest.csv"'


@pytest.mark.parametrize(
    "name", ["x\"; filename*=UTF-8''setup.bat", "x\r\nX-Evil: 1", "größe.csv", "日本", "\ud800"]
)
def test_any_other_name_is_encoded(name: str):
    value = attachment(name)
    value.encode("ascii")
    assert value.isprintable()
    plain, _, encoded = value.removeprefix('attachment; filename="').partition("\"; filename*=UTF-8''")
    assert '"' not in plain
    assert unquote(encoded) == name.replace("\ud800", "?")
