"""Models of tables and texts at the command line: records, files as they are, and test parts of their own."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from app.cli import build

HEADER = "age,job,since,member,class"
TRUTHS = ("true", "false")
LINES = [
    f"{'' if k % 9 == 0 else 20 + k % 40},{job},20{10 + k % 9}-03-0{1 + k % 9},{TRUTHS[k % 2]},{label}"
    for k in range(60)
    for label, job in ((("a", "clerk"), ("b", "cook"), ("c", "nurse"))[k % 3],)
]
RECORD = {"age": None, "job": "cook", "since": "2014-03-04", "member": True}
QUICK = ("--set", "automatic=false", "--set", "features.kind=linear", "--set", "publish=true")


@pytest.fixture
def ask(run, live):
    return lambda *arguments: run(*arguments, STMS_URL=live.address)


@pytest.fixture(scope="module")
def people(live, tmp_path_factory) -> Path:
    """The file of the rows from which the model `people` was trained."""
    file = tmp_path_factory.mktemp("people") / "people.csv"
    file.write_text("\n".join([HEADER, *LINES]), encoding="utf-8")
    result = CliRunner().invoke(
        build(),
        ["train", str(file), "--model", "people", "--server", live.address, *QUICK],
        env={"COLUMNS": "300"},
    )
    assert result.exit_code == 0, result.output
    return file


@pytest.fixture(scope="module")
def mail(live, tmp_path_factory) -> None:
    """The model `mail` of a single column of texts."""
    file = tmp_path_factory.mktemp("mail") / "mail.tsv"
    words = {"spam": "win a big prize now and call", "ham": "see you at home for dinner tonight"}
    lines = [f"{label}\t{text} {k}" for k in range(30) for label, text in words.items()]
    file.write_text("\n".join(lines), encoding="utf-8")
    said = ["--column-names", "label,text", "--column", "text:text"]
    result = CliRunner().invoke(
        build(), ["train", str(file), "--model", "mail", "--server", live.address, *said, *QUICK]
    )
    assert result.exit_code == 0, result.output


def said_by(result: Any) -> str:
    return " ".join(result.stderr.replace("│", " ").split())


def test_a_record_is_answered_with_yes_or_no(ask, people):
    yes = ask("query", "people", "b", "--record", json.dumps(RECORD))
    assert yes.stdout.startswith("yes (score "), yes.stderr
    assert "people version 1" in yes.stdout
    no = ask("query", "people", "b", "--record", json.dumps(RECORD | {"job": "nurse"}))
    assert no.stdout.startswith("no (score ")
    both = ask("query", "people", "b", "--class", "c", "--record", json.dumps(RECORD))
    assert [line.split()[1:3] for line in both.stdout.splitlines()[1:]] == [["b", "yes"], ["c", "no"]]


def test_an_explained_record_says_what_training_did_not_have(ask, people):
    odd = RECORD | {"age": 99, "job": "judge"}
    shown = ask("query", "people", "b", "--record", json.dumps(odd), "--explain").stdout
    assert "Outside the range of the training rows: age." in shown
    assert "No row of training had the value of: job." in shown
    plain = ask("query", "people", "b", "--record", json.dumps({"age": 99, "job": "judge"})).stdout
    assert "Outside the range of the training rows: age." in plain
    assert "No row of training had the value of: job." in plain
    assert "Missing, and estimated from the other columns: since, member." in plain


def test_an_explained_record_says_what_each_column_adds(ask, people):
    shown = ask("query", "people", "b", "--record", json.dumps(RECORD | {"job": "judge"}), "--explain").stdout
    verdict, missing, unseen, title, header, *lines = shown.splitlines()
    assert missing == "Missing, and estimated from the other columns: age."
    assert "gate" not in verdict
    assert unseen == "No row of training had the value of: job."
    assert title.startswith("A typical row has the score ")
    assert header.split() == ["effect", "column", "value", "words"]
    effects = [abs(float(line.split()[0])) for line in lines]
    assert len(effects) > 1
    assert effects == sorted(effects, reverse=True)
    assert re.search(r"job +judge \(not in training\)", shown)
    scores = ask("query", "people", "b", "--record", json.dumps(RECORD), "--explain-scores").stdout
    assert re.match(r"yes \(score .*, gate .*, rejection .*, people version 1\)\n", scores)
    table = ask("query", "people", "b", "--class", "c", "--record", json.dumps(RECORD), "--explain").stdout
    assert re.search(r"because of *\n1 +b +yes .* job [+-][\d.]+, since [+-][\d.]+ *\n", table)


def test_a_text_is_answered_with_yes_or_no(ask, mail, tmp_path):
    yes = ask("query", "mail", "spam", "--text", "call now to win", "--explain")
    assert yes.stdout.startswith("yes (score "), yes.stderr
    assert re.search(r"Words of 'text' that training had: [1-9]", yes.stdout)
    assert ask("query", "mail", "spam", "--text", "dinner at home").stdout.startswith("no ")
    file = tmp_path / "new.csv"
    file.write_text('text\n"win a prize, now"\ndinner tonight\n', encoding="utf-8")
    result = ask("query", "mail", "spam", "--file", str(file))
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [["2", "yes"], ["3", "no"]]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--record", "{"], 2, "this is not JSON"),
        (["--record", "[1]"], 2, "this is no object like"),
        (["--record", '{"age": 1, "age": 2}'], 2, "the key 'age' is there twice"),
        (["--record", json.dumps(RECORD | {"jobb": 1})], 1, "did you mean 'job'?"),
        (["--record", json.dumps(RECORD | {"age": "old"})], 1, "age"),
        (["--record", '{"age": NaN}'], 1, "record.age is nan"),
        (["--text", "win"], 1, "'text' is for models whose only column is one of texts"),
        (["--row", "1,2"], 1, '{"record": {'),
        ([], 2, "give one of --row, --record, --text, --image, --file"),
        (["--text", "a", "--record", "{}"], 2, "give one of"),
    ],
)
def test_a_question_that_cannot_be_meant_is_told(ask, people, arguments, code, said):
    result = ask("query", "people", "b", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in said_by(result)


def written(folder: Path, form: str) -> Path:
    file = folder / f"rows.{form}"
    names = HEADER.split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in LINES[:6]]
    records = [
        row | {"age": int(row["age"]) if row["age"] else None, "member": row["member"] == "true"}
        for row in rows
    ]
    if form == "csv":
        file.write_text("\n".join([HEADER, *LINES[:6]]), encoding="utf-8")
    elif form == "jsonl":
        file.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    else:
        parquet.write_table(pa.Table.from_pylist(records), file)
    return file


def test_a_file_as_it_is_has_the_same_answers_in_every_form(ask, people, tmp_path):
    scores = []
    for form in ("csv", "jsonl", "parquet"):
        result = ask("query", "people", "b", "--file", str(written(tmp_path, form)), "--json")
        assert result.exit_code == 0, result.stderr
        scores.append([row["score"] for row in json.loads(result.stdout)["results"]])
        assert "Column 'class' of the file is not part of the question." in result.stderr
    assert scores[0] == scores[1] == scores[2]
    whole = ask("query", "people", "b", "--file", str(people))
    assert [line.split()[1] for line in whole.stdout.splitlines()[1:]] == ["no", "yes", "no"] * 20
    assert whole.stderr.endswith("(lines 2 to 61), 60 answered.\n")


def test_a_file_that_lacks_columns_or_has_wrong_cells_is_told_by_its_lines(ask, people, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text(
        "Age,job,since,member\n1,cook,2014-03-04,true\n2,cook,2014-03-05,true\n", encoding="utf-8"
    )
    noted = ask("query", "people", "b", "--file", str(file))
    assert noted.exit_code == 0
    assert "no column 'age' (is 'Age' meant?): its values are taken as missing." in noted.stderr
    file.write_text(
        "age,job,since,member\n1,cook,2014-03-04,true\n2,cook,04.03.2014,true\n", encoding="utf-8"
    )
    wrong = ask("query", "people", "b", "--file", str(file))
    assert (wrong.exit_code, [line.split()[0] for line in wrong.stdout.splitlines()]) == (3, ["line", "2"])
    assert "2 rows of" in wrong.stderr
    assert "1 answered." in wrong.stderr
    assert "Not answered: line 3: 'since' is not a date" in said_by(wrong)
    file.write_text("age,since,member\n1,2014-03-04,true\n2,2014-03-05,true\n", encoding="utf-8")
    lacking = ask("query", "people", "b", "--file", str(file))
    assert (lacking.exit_code, "no column 'job'" in lacking.stderr) == (0, True)
    assert [line.split()[-2] for line in lacking.stdout.splitlines()] == ["missing", "job", "job"]
    file.write_text(
        "age,job,since,member\nn.a.,cook,2014-03-04,true\n2,cook,2014-03-05,true\n", encoding="utf-8"
    )
    some = ask("query", "people", "b", "--file", str(file))
    assert (some.exit_code, "'n.a.' is not a number" in said_by(some)) == (3, True)
    assert ask("query", "people", "b", "--file", str(file), "--null", "n.a.").exit_code == 0


def test_rows_that_the_service_refuses_are_left_out_with_their_lines(ask, people, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [RECORD | {"age": age} for age in (30, 1e200, 31, "x", 32, 33)]
    file.write_text("\n".join(map(json.dumps, [*rows, {}])), encoding="utf-8")
    result = ask("query", "people", "b", "--file", str(file), "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, [row["line"] for row in answer["results"]]) == (3, [1, 3, 5, 6])
    assert len(answer["left_out"]) == 3
    for line in (2, 4, 7):
        assert f"line {line}" in result.stderr.lower(), result.stderr
    table = tmp_path / "rows.parquet"
    records = [RECORD | {"since": since} for since in ("2014-03-04", "soon", "2014-03-05")]
    parquet.write_table(pa.Table.from_pylist(records), table)
    result = ask("query", "people", "b", "--file", str(table))
    assert result.exit_code == 3
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["1", "3"]


def trained(ask: Any, model: str, *arguments: str) -> dict[str, Any]:
    """The job of `stms train` with these arguments."""
    result = ask("train", *arguments, "--model", model, "--json", *QUICK)
    assert result.exit_code == 0, result.stderr
    job: dict[str, Any] = json.loads(result.stdout)
    return job


@pytest.fixture
def second_file(tmp_path: Path) -> Path:
    """Rows with the columns turned, of which one is of a class that has no other row."""
    lines = [
        ",".join(reversed(line.split(","))) for line in [HEADER, *LINES[:20], "30,clerk,2012-03-01,true,c"]
    ]
    file = tmp_path / "test.csv"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_a_test_part_is_a_second_file_whose_columns_are_found_by_name(ask, people, second_file):
    job = trained(ask, "measured", str(people), "--test", str(second_file))
    assert job["hyperparameters"]["evaluation"]["dataset_id"].startswith("ds_")
    students = json.loads(ask("jobs", "students", job["id"], "--json").stdout)
    assert {row["metrics"]["tp"] + row["metrics"]["fn"] for row in students} == {7}
    again = trained(
        ask, "measured", str(people), "--test", job["hyperparameters"]["evaluation"]["dataset_id"]
    )
    # The second job keeps the columns of the first one's version.
    assert again["hyperparameters"] == job["hyperparameters"] | {"like": "measured@1"}


@pytest.mark.long
@pytest.mark.parametrize("bare", ["train", "test"])
def test_one_of_both_files_may_have_no_header(ask, people, second_file, tmp_path, bare):
    with_names, without = tmp_path / "with.csv", tmp_path / "without.csv"
    with_names.write_text("\n".join([HEADER, *LINES]), encoding="utf-8")
    without.write_text("\n".join(LINES), encoding="utf-8")
    train, test = (without, with_names) if bare == "train" else (with_names, without)
    said = ["--column-names", HEADER, "--label-column", "class"]
    job = trained(ask, f"bare-{bare}", str(train), "--test", str(test), *said)
    students = json.loads(ask("jobs", "students", job["id"], "--json").stdout)
    assert {row["metrics"]["f1"] for row in students} == {1.0}


@pytest.mark.long
def test_classes_and_labels_that_a_test_part_should_not_have_are_told(ask, people, second_file):
    text = second_file.read_text(encoding="utf-8")
    second_file.write_text(text + "\nd,true,2012-03-01,cook,30", encoding="utf-8")
    refused = ask("train", str(people), "--model", "m", "--test", str(second_file))
    assert refused.exit_code == 1
    assert "'d'" in refused.stderr
    assert "evaluation.unknown_classes=drop" in said_by(refused)
    said = ("--test", str(second_file), "--set", "evaluation.unknown_classes=drop")
    job = trained(ask, "dropped", str(people), *said)
    assert job["provenance"]["test_rows_left_out"] == 1
    second_file.write_text(text + "\n,true,2012-03-01,cook,30", encoding="utf-8")
    refused = ask("train", str(people), "--model", "m", "--test", str(second_file))
    assert refused.exit_code == 1
    assert "This is about the test part" in refused.stderr
    assert "--unlabelled accept" in said_by(refused)
    accepted = ask(
        "train", str(people), "--model", "m", "--test", str(second_file), "--unlabelled", "accept", *QUICK
    )
    assert "Rows of the test part without a label, which are left out: 1." in accepted.stderr
    assert accepted.exit_code == 0, accepted.stderr


def test_a_test_part_without_labels_says_what_else_to_do_with_it(ask, people, tmp_path):
    file = tmp_path / "test.csv"
    file.write_text(
        "age,job,since,member\n1,cook,2014-03-04,true\n2,cook,2014-03-05,true\n", encoding="utf-8"
    )
    refused = ask("train", str(people), "--model", "m", "--test", str(file))
    assert refused.exit_code == 1
    assert "no column 'class'" in refused.stderr
    both = ask(
        "train", str(people), "--model", "m", "--test", str(file), "--set", "evaluation.test_fraction=0.2"
    )
    assert (both.exit_code, "give one of them" in both.stderr) == (2, True)


@pytest.mark.long
def test_a_test_part_of_sparse_rows_is_read_with_the_same_options(ask, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        rows = [f"{k % 2} 1:{k % 2 + rng.normal() / 9:.3f} 3:1" for k in range(20)]
        (tmp_path / f"{name}.svm").write_bytes(io.StringIO("\n".join(rows)).getvalue().encode())
    job = trained(ask, "sparse", str(tmp_path / "train.svm"), "--test", str(tmp_path / "test.svm"))
    students = json.loads(ask("jobs", "students", job["id"], "--json").stdout)
    assert {row["metrics"]["f1"] for row in students} == {1.0}
