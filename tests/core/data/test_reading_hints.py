"""The options of reading in messages, in the form of requests and of the command line."""

from __future__ import annotations

import inspect

import pytest

from app.commands.output import cli_words
from app.commands.reading_options import UNSAID, takes_reading
from app.ingest.options import ReadingOptions
from core.data.reading_hints import reading_flag, reading_hint


def test_every_option_of_reading_has_the_flag_that_commands_take():
    @takes_reading()
    def command(reading=UNSAID): ...

    options = inspect.signature(command).parameters
    flags = {name: options[name].annotation.__metadata__[0].default for name in options}
    assert flags == {name: reading_flag(name) for name in ReadingOptions.__struct_fields__}


@pytest.mark.parametrize(
    ("field", "values", "request_form", "flags"),
    [
        ("header", ["no"], "header=no", "--header no"),
        ("columns", ["a b (x):text"], "columns=a b (x):text", "--column 'a b (x):text'"),
        ("columns", ["p:number:1,5"], 'columns="p:number:1,5"', "--column p:number:1,5"),
        ("null_values", ["--", "n a"], "null_values=--,n a", "--null -- --null 'n a'"),
        ("column_names", ["a,b"], "column_names=a,b", "--column-names a,b"),
    ],
)
def test_the_command_line_shows_its_own_form_alone(field, values, request_form, flags):
    hint = reading_hint(field, *values)
    assert hint == f"{request_form} ({flags})"
    message = f"Column 'a=b (c)' is odd. Say {hint}; or {reading_hint('skip_lines', '1')}."
    assert cli_words(message) == f"Column 'a=b (c)' is odd. Say {flags}; or --skip-lines 1."
