"""Several files, or those of a folder, as one: lines below one header, and rows of Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from app.commands.joined_files import one_file
from app.commands.output import CommandFailed
from app.commands.reading_options import Reading


def written(folder: Path, **files: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / name.replace("_csv", ".csv").replace("_jsonl", ".jsonl") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_bytes(text.encode())
    return paths


def joined(*paths: Path, **said: Any) -> tuple[str, str]:
    """Name and content of the file that is sent."""
    with one_file(paths, None, Reading(said)) as file:
        return file.name, file.read_text(encoding="utf-8")


def test_one_file_is_sent_as_it_is(tmp_path: Path):
    [path] = written(tmp_path, a_csv="x,y\n1,a\n")
    with one_file([path]) as file:
        assert file == path


def test_lines_of_csv_files_stand_below_one_header(tmp_path: Path):
    folder = tmp_path / "parts"
    paths = written(folder, b_csv="\ufeffx,y\r\n3,c", a_csv="x,y\n1,a\n2,b\n")
    (folder / ".hidden").write_text("no")
    (folder / "_SUCCESS").write_text("")
    assert joined(folder) == ("parts.csv", "x,y\n1,a\n2,b\n3,c\n")
    assert joined(*reversed(paths)) == ("a and 1 more.csv", "x,y\n1,a\n2,b\n3,c\n")
    titles = written(tmp_path / "titles", a_csv="made today\nx,y\n1,a\n", b_csv="made later\nx,y\n2,b\n")
    assert joined(*titles, skip_lines=1)[1] == "made today\nx,y\n1,a\n2,b\n"
    bare = written(tmp_path / "bare", a_csv="1,a\n", b_csv="2,b\n")
    assert joined(*bare, header="no")[1] == "1,a\n2,b\n"


def test_lines_of_json_follow_each_other(tmp_path: Path):
    paths = written(tmp_path, a_jsonl='{"x": 1}', b_jsonl='{"x": 2}\n')
    assert joined(*paths) == ("a and 1 more.jsonl", '{"x": 1}\n{"x": 2}\n')


def test_parquet_files_of_different_programs_are_one_table(tmp_path: Path):
    pandas = pa.table({"n": pa.array([1, 2]), "t": pa.array(["a", "b"]).dictionary_encode()})
    polars = pa.table({"t": pa.array(["c"], pa.large_string()), "n": pa.array([0.5])})
    parquet.write_table(pandas, tmp_path / "1.parquet")
    parquet.write_table(polars, tmp_path / "2.parquet")
    with one_file([tmp_path]) as file:
        assert parquet.read_table(file).to_pydict() == {"n": [1.0, 2.0, 0.5], "t": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no files"),
        (
            {"a_csv": "x,y\n1,a\n", "b_csv": "y,x\na,1\n"},
            "b.csv is not that of .*a.csv: files of one data set",
        ),
        ({"a_csv": "x,y\n1,a\n", "b_jsonl": '{"x": 1}\n'}, "one format: a.csv is CSV, b.jsonl is JSON Lines"),
        ({"a_csv": "x,y\n1,a\n", "b_csv": ""}, "b.csv: The file is empty"),
        ({"a.arff": "@relation r\n", "b.arff": "@relation r\n"}, "ARFF files are not joined, only CSV, "),
    ],
)
def test_what_cannot_be_one_data_set_is_told(tmp_path: Path, files: dict[str, str], message: str):
    folder = tmp_path / "parts"
    written(folder, **files)
    with pytest.raises(CommandFailed, match=message):
        joined(folder)


def test_folders_and_columns_that_do_not_fit_are_told(tmp_path: Path):
    inner = tmp_path / "parts" / "year=2025"
    inner.mkdir(parents=True)
    with pytest.raises(CommandFailed, match="has a folder, 'year=2025'"):
        joined(tmp_path / "parts")
    parquet.write_table(pa.table({"a": [1], "b": [1]}), inner / "1.parquet")
    parquet.write_table(pa.table({"a": [1], "c": [1]}), inner / "2.parquet")
    with pytest.raises(
        CommandFailed, match=r"2.parquet has not the columns of .*: it lacks 'b', has 'c' besides"
    ):
        joined(inner)
    parquet.write_table(pa.table({"a": [1], "b": [[1]]}), inner / "2.parquet")
    with pytest.raises(CommandFailed, match="The Parquet files cannot be joined"):
        joined(inner)
    with pytest.raises(CommandFailed, match=r"part\*.csv does not exist. Without quotes the shell lists"):
        joined(tmp_path / "part*.csv")
