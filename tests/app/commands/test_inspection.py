"""What is printed of a file: its columns with some cells, and nothing that could move a terminal's cursor."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.commands.inspection import inspected, reading_parts
from app.commands.output import Answer


def printed(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    file = tmp_path / "a.csv"
    file.write_text(content, encoding="utf-8")
    document = inspected(file, None)
    Answer(document, *reading_parts(document)).print(as_json=False)
    return capsys.readouterr().out


def test_cells_are_shown_in_one_line_and_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = ['"a, b"', "\x1b[31mred", "[bold]x[/]", '"two\nlines"']
    lines = [f"{notes[k % 4]},${k % 7 + 1}.50,{'ab'[k % 2]}" for k in range(40)]
    shown = printed("\n".join(["no\x1bte,price,label", *lines]), tmp_path, capsys)
    assert "\x1b" not in shown
    (note,) = [line for line in shown.splitlines() if line.startswith("no\\x1bte ")]
    assert r"'a, b', \x1b[31mred, [bold]x[/]" in note
    (price,) = [line for line in shown.splitlines() if line.startswith("price ")]
    assert price.split()[1:6] == ["number", "$1,234.5", "$1.50,", "$2.50,", "$3.50"]


def test_columns_of_numbers_alone_are_shown_with_their_names_or_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{k % 5}.5,{k * k},{'ab'[k % 2]}" for k in range(40)]
    shown = printed("\n".join(["size,n,label", *lines]), tmp_path, capsys)
    assert "size    number  0.5, 1.5, 2.5" in shown
    assert "1       number  0, 1, 4" in printed("\n".join(lines), tmp_path, capsys)


def test_what_makes_results_too_good_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{k * 37 % 61}.5,{'ab'[k % 2]},{'ab'[k % 2]}" for k in range(60)]
    shown = printed("\n".join(["p,copy,label", *lines]), tmp_path, capsys)
    assert "Note: Column 'copy' is the label once more" in shown
