"""Origins of remote teachers, and which of them the setting allows."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.domain.origins import AllowedServers, Origin, token_of
from app.domain.training_spec import TrainingSpec
from app.settings import Settings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://Triton.Example.com", "https://triton.example.com"),
        ("http://triton:8000/", "http://triton:8000"),
        ("https://a.example.com:443", "https://a.example.com"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://host.", "http://host"),
    ],
)
def test_an_origin_has_one_form(text, shown):
    assert str(Origin.of(text)) == shown
    assert Origin.of(shown) == Origin.of(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://a",
        "//a",
        "a:8000",
        "http://",
        "http://a/v2",
        "http://a?x=1",
        "http://a#x",
        "http://user:secret@a",
        "http://@a",
        "http://a:0",
        "http://a:70000",
        "http://[::1",
        "file:///etc/passwd",
    ],
)
def test_what_is_more_or_less_than_an_origin_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        Origin.of(text)
    with pytest.raises(ValidationError):
        TrainingSpec.model_validate({"teacher": {"method": "remote", "url": text, "model": "m"}})


def test_only_listed_origins_and_hosts_below_a_listed_domain_are_allowed():
    allowed = AllowedServers.of("http://triton:8000, https://*.models.example.com")
    yes = [
        "http://triton:8000",
        "http://TRITON:8000/",
        "https://a.models.example.com",
        "https://b.a.models.example.com",
    ]
    no = [
        "http://triton",
        "https://triton:8000",
        "https://models.example.com",
        "https://evilmodels.example.com",
        "http://a.models.example.com",
        "https://a.models.example.com:8443",
        "https://a.models.example.com.evil.com",
    ]
    assert [allowed.allow(Origin.of(text)) for text in yes] == [True] * len(yes)
    assert [allowed.allow(Origin.of(text)) for text in no] == [False] * len(no)
    assert not AllowedServers.of("").allow(Origin.of(yes[0]))


@pytest.mark.parametrize("setting", ["triton", "http://a/b", "https://a.*.com", "*", "http://*"])
def test_a_wrong_list_stops_the_start(setting):
    with pytest.raises(ValidationError):
        Settings(remote_teachers=setting)


def test_tokens_belong_to_an_origin_and_are_not_shown(monkeypatch):
    monkeypatch.setenv("STMS_REMOTE_TEACHER_TOKENS", '{"https://triton.example.com/": "abc"}')
    settings = Settings()
    assert "abc" not in repr(settings)
    tokens = {origin: token.get_secret_value() for origin, token in settings.remote_teacher_tokens.items()}
    assert token_of(tokens, Origin.of("https://triton.example.com:443")) == "abc"
    assert token_of(tokens, Origin.of("http://triton.example.com")) is None
    for wrong in ({"https://a/b": "abc"}, {"https://a": "a\nX-Other: b"}, {"https://a": ""}):
        with pytest.raises(ValidationError):
            Settings.model_validate({"remote_teacher_tokens": wrong})


def test_a_remote_teacher_is_read_and_written():
    given = {
        "method": "remote",
        "url": "https://triton:8000",
        "model": "net",
        "columns": ["b", "a"],
        "batch": 10,
    }
    spec = TrainingSpec.model_validate({"teacher": given})
    stored = spec.model_dump(mode="json")
    assert given.items() <= stored["teacher"].items()
    assert TrainingSpec.model_validate(stored) == spec
    assert spec.teacher.model is None
    for changed in (
        {"model": "a/b"},
        {"model": ".."},
        {"version": "1/../2"},
        {"batch": 0},
        {"C": 1},
        {"model": None},
    ):
        with pytest.raises(ValidationError):
            TrainingSpec.model_validate({"teacher": given | changed})
