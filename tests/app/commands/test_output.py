"""What cells and messages look like."""

from __future__ import annotations

import pytest

from app.commands.output import CommandFailed, Table, clock, print_failure
from app.domain.event_text import text
from app.domain.shown_figures import percent, share, size


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        ("", "–"),
        (True, "yes"),
        (False, "no"),
        (0.000123456, "0.0001235"),
        ([], "–"),
        (["a", 1], "a, 1"),
        (12345678, "12345678"),
    ],
)
def test_cells(value, shown):
    assert text(value) == shown


@pytest.mark.parametrize(
    ("n_bytes", "shown"), [(1, "1 B"), (1536, "1.5 kB"), (5_000_000, "5.0 MB"), (3 * 10**12, "3.0 TB")]
)
def test_sizes(n_bytes, shown):
    assert size(n_bytes) == shown


def test_shares_and_times_may_be_missing():
    assert (percent(None), share(None), size(None)) == ("–", "–", "–")
    assert (percent(0.12345), share(0.12345)) == ("12.3 %", "0.1235")
    assert clock(None) == "–"
    assert clock("2026-11-21T11:00:00.123Z").startswith("2026-11-2")


def test_markup_in_names_is_shown_as_it_is(capsys):
    Table([("name", lambda row: row["name"])], [{"name": "[bold]x[/]"}], empty="").print()
    print_failure(CommandFailed("no [red]x[/]", ["see [y]"]))
    shown = capsys.readouterr()
    assert "[bold]x[/]" in shown.out
    assert "Error: no [red]x[/]" in shown.err
    assert "see [y]" in shown.err
