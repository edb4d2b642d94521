"""The commands that talk to a server, against a real one: from a file to an answer."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest


@pytest.fixture(scope="module")
def trained(live, csv_file):
    """Id of a job that trained model `kinds` on the CSV file, through the command line."""
    from typer.testing import CliRunner

    from app.cli import build

    arguments = [
        "train",
        str(csv_file),
        "--model",
        "kinds",
        "--label-column",
        "kind",
        "--server",
        live.address,
    ]
    parameters = ["--set", "evaluation.test_fraction=0.3", "--set", 'evaluation.baselines=["svm"]']
    parameters += ["--set", "automatic=false"]
    result = CliRunner().invoke(build(), [*arguments, *parameters], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    assert "60 rows, 3 classes" in result.stderr
    assert "student gsvm of class a: objective" in result.stderr
    found = re.search(r"Job (\S+) succeeded, version 1 of model kinds is published\.", result.stdout)
    assert found, result.stdout
    assert re.search(r"\na +1\.0000 +1\.0000 +1\.0000 +[\d.]+ % +[\d.]+ % *\n", result.stdout), result.stdout
    assert re.search(r"\nNext:  stms query kinds [abc] --row [-\d.,]+ --server http", result.stdout), (
        result.stdout
    )
    return found[1]


@pytest.fixture
def ask(run, live):
    return lambda *arguments: run(*arguments, STMS_URL=live.address)


def test_the_server_is_ready(ask):
    result = ask("ping")
    assert result.exit_code == 0
    assert "is ready" in result.stdout


def test_ping_finds_the_server_by_its_own_settings(run, live):
    host, port = live.address.removeprefix("http://").split(":")
    assert run("ping", STMS_HOST=host, STMS_PORT=port).exit_code == 0


@pytest.mark.long
def test_a_job_can_be_looked_at(ask, trained):
    assert trained in ask("jobs", "list").stdout
    assert trained in ask("jobs", "list", "--state", "succeeded").stdout
    assert "There are no jobs." in ask("jobs", "list", "--state", "failed").stdout
    shown = ask("jobs", "show", trained).stdout
    assert re.search(r"state +succeeded", shown)
    assert re.search(r"provenance seed +0", shown)
    assert json.loads(ask("jobs", "show", trained, "--json").stdout)["model"] == "kinds"
    assert trained in [job["id"] for job in json.loads(ask("jobs", "list", "--json").stdout)]


def test_what_happened_is_told_in_order(ask, trained):
    events = json.loads(ask("jobs", "events", trained, "--json").stdout)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "job_queued"
    assert kinds[-1] == "job_succeeded"
    assert kinds.count("student_finished") == 6
    assert "published kinds version 1 as latest" in ask("jobs", "events", trained).stdout


def test_students_are_a_table_of_class_and_method(ask, trained):
    rows = json.loads(ask("jobs", "students", trained, "--json").stdout)
    assert {(row["label"], row["method"]) for row in rows} >= {(label, "gsvm") for label in "abc"}
    table = ask("jobs", "students", trained).stdout
    assert re.search(r"a +gsvm +succeeded .* 1\.0000 +1\.0000 +1\.0000", table)


def test_a_finished_job_can_be_waited_for_again(ask, trained):
    result = ask("jobs", "wait", trained)
    assert result.exit_code == 0
    assert "succeeded" in result.stdout


@pytest.mark.long
def test_a_version_is_trained_again_and_the_command_that_compares_both_is_said(ask, trained):
    result = ask("models", "retrain", "kinds@latest", "--set", "student.C=20", "--alias", "candidate")
    assert result.exit_code == 0, result.output
    found = re.search(r"Job (\S+) succeeded, version (\d+) of model kinds is published\.", result.stdout)
    assert found, result.stdout
    job = json.loads(ask("jobs", "show", found[1], "--json").stdout)
    assert job["provenance"]["retrained_from"] == {"model": "kinds", "version": 1, "job_id": trained}
    assert (job["hyperparameters"]["student"]["C"], job["hyperparameters"]["alias"]) == (20, "candidate")
    said = f"kinds@{found[2]} --dataset {job['dataset_id']} --baseline kinds@latest"
    assert f"Compare both:  stms evaluate {said}" in result.stdout
    ask("models", "unalias", "kinds", "candidate")
    ask("models", "delete", "kinds", found[2])


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_a_finished_job_is_neither_cancelled_nor_retried(ask, trained, verb):
    result = ask("jobs", verb, trained)
    assert result.exit_code == 1
    assert "HTTP 409" in result.stderr


def test_the_same_file_is_one_data_set(ask, trained, csv_file):
    first = json.loads(ask("datasets", "upload", str(csv_file), "--label-column", "kind", "--json").stdout)
    listed = json.loads(ask("datasets", "list", "--json").stdout)
    assert [one["id"] for one in listed if one["name"] == first["name"]] == [first["id"]]
    assert "three kinds" in ask("datasets", "list").stdout
    shown = ask("datasets", "show", first["id"]).stdout
    assert re.search(r"rows +60 to train, 0 to test", shown)
    assert "a (20), b (20), c (20)" in shown
    assert json.loads(ask("datasets", "show", first["id"], "--json").stdout) == first
    [row] = json.loads(ask("datasets", "rows", first["id"], "--class", "b", "--limit", "1", "--json").stdout)
    assert row["label"] == "b"
    assert len(ask("datasets", "rows", first["id"], "--limit", "7").stdout.splitlines()) == 8


def test_rows_are_appended_to_a_data_set_and_deleted_from_it(ask, tmp_path):
    for name, rows in {"old": "1,2,x\n2,1,y\n1,3,x\n2,2,y\n", "new": "1,2,x\n5,6,y\n"}.items():
        (tmp_path / f"{name}.csv").write_text(rows, encoding="utf-8")
    old = json.loads(ask("datasets", "upload", str(tmp_path / "old.csv"), "--json").stdout)["id"]
    made = ask(
        "datasets", "append", old, str(tmp_path / "new.csv"), "--rare-classes", "keep", "--note", "May"
    )
    assert made.exit_code == 0, made.stderr
    said = r"Data set (\S+) is revision 2 of \S+ 1 rows added, 0 deleted, 0 relabelled, 1 equal ones left out"
    found = re.search(said, made.stdout)
    assert found, made.stdout
    shown = " ".join(ask("datasets", "show", found[1]).stdout.split())
    assert (
        f"revision 2 of {old}, made of {old}: 1 rows added, 0 deleted (May); the newest is this one" in shown
    )
    assert f"the newest is {found[1]}" in " ".join(ask("datasets", "show", old).stdout.split())
    fewer = json.loads(ask("datasets", "delete-rows", found[1], "1", "--json").stdout)
    assert (fewer["rows"], fewer["revision"], fewer["change"]["deleted"]) == (4, 3, 1)
    wrong = ask("datasets", "delete-rows", old, "77")
    assert wrong.exit_code == 1
    assert "There is no row 77" in wrong.stderr


def test_a_data_set_can_be_uploaded_and_deleted(ask, tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("1,2,x\n2,1,y\n1,3,x\n2,2,y\n", encoding="utf-8")
    uploaded = ask("datasets", "upload", str(file), "--name", "mine")
    assert uploaded.exit_code == 0
    found = re.search(r"id +(\S+)", uploaded.stdout)
    assert found
    assert ask("datasets", "delete", found[1]).exit_code == 0
    gone = ask("datasets", "show", found[1])
    assert gone.exit_code == 1
    assert "HTTP 404" in gone.stderr


def test_a_bad_cell_is_named_by_row_and_column(ask, tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text("a,b,kind\n" + "1,2,x\n2,3,y\n" * 20 + "2,###,y\n", encoding="utf-8")
    for command in ("upload", "inspect"):
        result = ask("datasets", command, str(file))
        assert result.exit_code == 1
        assert "in all but 1 of 41 cells: '###', first in line 42." in result.stderr, result.stderr


def test_the_columns_of_a_table_are_shown(ask, tmp_path):
    file = tmp_path / "mixed.csv"
    file.write_text("age,job,kind\n39,none,x\n,clerk,y\n41,?,x\n40,clerk,y\n", encoding="utf-8")
    said = ("--column", "age:category", "--null", "none")
    for command in ("inspect", "upload"):
        result = ask("datasets", command, str(file), *said)
        assert result.exit_code == 0, result.stderr
        shown = [line.split() for line in result.stdout.splitlines()]
        assert ["age", "category", "39,", "41,", "40", "given", "1", "(''", "1)", "3", "–"] in shown
        assert ["job", "category"] in [line[:2] for line in shown]
    assert json.loads(ask("datasets", "inspect", str(file), "--json").stdout)["rows"] == 4


def test_an_empty_file_is_not_sent(ask, tmp_path):
    file = tmp_path / "empty.csv"
    file.touch()
    result = ask("datasets", "upload", str(file))
    assert result.exit_code == 1
    assert "is empty" in result.stderr


def test_a_model_has_versions_and_aliases(ask, trained):
    assert "latest → 1" in ask("models", "list").stdout
    assert ask("models", "alias", "kinds", "production", "1").exit_code == 0
    assert ask("models", "alias", "kinds", "production", "1").exit_code == 0
    shown = ask("models", "show", "kinds").stdout
    assert "production → 1" in shown
    assert re.search(r"1 +gsvm +3 +2 +1\.0000", shown)
    assert json.loads(ask("models", "show", "kinds", "--json").stdout)["name"] == "kinds"
    assert "kinds" in [model["name"] for model in json.loads(ask("models", "list", "--json").stdout)]
    missing = ask("models", "alias", "kinds", "production", "7")
    assert missing.exit_code == 1
    assert "HTTP 404" in missing.stderr


def test_one_row_is_answered_with_yes_or_no(ask, trained):
    yes = ask("query", "kinds", "b", "--row", "10.3,0.2")
    no = ask("query", "kinds@latest", "b", "--row", "0.3,0.2")
    assert (yes.exit_code, no.exit_code) == (0, 0)
    assert yes.stdout.startswith("yes (score ")
    assert "kinds version 1" in yes.stdout
    assert no.stdout.startswith("no (score -")
    assert json.loads(ask("query", "kinds", "b", "--row", "10.3,0.2", "--json").stdout)["match"] is True


@pytest.mark.parametrize(
    "row",
    ["second=0.2,first=10.3", " second = 0.2 , first=1.03e1", '{"second": 0.2, "first": 10.3}', "[10.3,0.2]"],
)
def test_one_row_may_have_the_names_of_its_columns(ask, trained, row):
    assert ask("query", "kinds", "b", "--row", row).stdout.startswith("yes (score ")


@pytest.mark.parametrize(
    ("row", "code", "said"),
    [
        ("second=0.2,10.3", 2, "'10.3' is not NAME=NUMBER"),
        ("second=0.2,second=1", 2, "'second' is there twice"),
        ("second=x,first=1", 2, "second: 'x' is not a finite number"),
        ("=1,first=1", 2, "'=1' is not NAME=NUMBER"),
        ('{"second": 1', 2, "not JSON"),
        ("second=0.2,frist=1", 1, "did you mean 'first'?"),
    ],
)
def test_a_row_by_names_that_do_not_fit_is_told(ask, trained, row, code, said):
    result = ask("query", "kinds", "b", "--row", row)
    assert result.exit_code == code
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_an_explained_row_tells_what_is_outside_the_range(ask, trained):
    outside = ask("query", "kinds", "b", "--row", "99,0.2", "--explain").stdout
    assert "Outside the range of the training rows: first." in outside
    assert "Outside" not in ask("query", "kinds", "b", "--row", "10.3,0.2", "--explain").stdout
    table = ask("query", "kinds", "b", "--class", "a", "--row", "99,0.2", "--explain").stdout
    assert table.splitlines()[0].split()[-3:] == ["outside", "because", "of"]
    assert "first" in table.splitlines()[1]


def answered(result):
    return [line.split()[:2] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"first,second\n10.3,0.2\n0.3,0.2\n", "23"),
        (b"\xef\xbb\xbf10.3,0.2\n0.3,0.2\n", "12"),
        (b"first;second\n10,3;0,2\n0,3;0,2\n\n", "23"),
        (b"10.3\t0.2\r\n0.3\t0.2\r\n", "12"),
        (b",first,second\n7,10.3,0.2\n8,0.3,0.2\n", "23"),
        (b"class,first,second\nb,10.3,0.2\na,0.3,0.2\n", "23"),
    ],
    ids=["header", "mark", "semicolons", "tabs", "index", "labels"],
)
def test_a_file_of_rows_is_read_as_an_upload_and_answered_by_its_lines(
    ask, trained, tmp_path, content, lines
):
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    result = ask("query", "kinds", "b", "--file", str(file))
    assert answered(result) == [["line", "match"], [lines[0], "yes"], [lines[1], "no"]]
    last = result.stderr.splitlines()[-1]
    assert last == f"2 rows of {file} (lines {lines[0]} to {lines[1]}), 2 answered."
    told = json.loads(ask("query", "kinds", "b", "--file", str(file), "--json").stdout)
    assert [row["line"] for row in told["results"]] == list(map(int, lines))


def test_a_file_as_it_was_uploaded_can_be_asked_about(ask, trained, csv_file):
    result = ask("query", "kinds", "b", "--file", str(csv_file))
    assert answered(result)[1][0] == "2"
    assert "Column 'kind' of the file is not part of the question." in result.stderr
    assert result.stderr.endswith("(lines 2 to 61), 60 answered.\n")


def test_named_columns_of_a_file_are_put_into_the_order_of_the_model(ask, trained, tmp_path):
    assert json.loads(ask("models", "show", "kinds", "--json").stdout)["versions"][-1]["inputs"] == {
        "columns": ["first", "second"],
        "label_column": "kind",
        "index_base": None,
        "ranges": [[0.0, 10.6], [0.0, 10.4]],
    }
    file = tmp_path / "rows.csv"
    for content in ("second,first\n0.2,10.3\n0.2,0.3\n", "second,kind,first\n0.2,?,10.3\n0.2,,0.3\n"):
        file.write_text(content, encoding="utf-8")
        result = ask("query", "kinds", "b", "--file", str(file))
        assert answered(result) == [["line", "match"], ["2", "yes"], ["3", "no"]]
    for names, said in (("second,third", "lacks 'first' and has 'third'"), ("first,FIRST", "lacks 'second'")):
        file.write_text(f"{names}\n1,2\n", encoding="utf-8")
        result = ask("query", "kinds", "b", "--file", str(file))
        assert (result.exit_code, said in result.stderr) == (1, True), result.stderr


@pytest.mark.parametrize(
    "content",
    [
        b"first,second\n1,?\n",
        b"?,1\n2,3\n",
        b"1,2\n\n3,4\n",
        b"a,b\n1\n",
        b"\xff\xfe1,2",
        b"",
        b"1,2\n\xff,3\n",
    ],
)
def test_no_row_of_a_file_is_lost_without_a_word(ask, trained, tmp_path, content):
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    result = ask("query", "kinds", "b", "--file", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")


@pytest.mark.parametrize("row", ["5.1,nan", "inf,1", "1,", "", "a,b", "1;2", "1e999,2", "１_０,2\udce9"])
def test_a_row_that_is_no_row_of_numbers_is_told_in_a_sentence(ask, trained, row):
    result = ask("query", "kinds", "b", "--row", row)
    assert result.exit_code == 2
    assert "is not a finite number" in result.stderr


def test_a_name_that_is_not_text_is_told_in_a_sentence(ask, trained):
    result = ask("query", "kinds\udce9", "b", "--row", "1,2")
    assert (result.exit_code, "must be valid text" in result.stderr) == (1, True)


def test_training_tells_how_the_file_was_read(ask, tmp_path):
    file = tmp_path / "labels.csv"
    rows = "".join(f"{'xy'[k % 2]},{k % 7},{k % 5 + 10 * (k % 2)}\n" for k in range(30))
    file.write_text("label,first,second\n" + rows, encoding="utf-8")
    uploaded = ask("datasets", "upload", str(file))
    assert "label (the only column with a usual name of a label)" in uploaded.stdout
    result = ask("train", str(file), "--model", "told", "--no-wait")
    assert "label column: label (the only column with a usual name of a label)" in result.stderr


@pytest.mark.parametrize("name", ["nofile.csv", "folder/nofile", "./nofile", "no file"])
def test_training_on_a_file_that_is_not_there_says_so(ask, name):
    result = ask("train", name, "--model", "kinds")
    assert result.exit_code == 1
    assert f"The file {name} does not exist" in result.stderr


def test_a_table_of_rows_is_answered_for_several_classes(ask, trained, tmp_path):
    file = tmp_path / "rows.npy"
    np.save(file, np.array([[10.3, 0.2], [0.3, 0.2]], np.float32))
    result = ask("query", "kinds", "b", "--class", "a", "--file", str(file), "--explain-scores")
    header, *lines = [line.split() for line in result.stdout.splitlines()]
    assert header == ["nr", "class", "match", "score", "threshold", "gate", "rejection"]
    assert [line[:3] for line in lines] == [
        ["1", "b", "yes"],
        ["1", "a", "no"],
        ["2", "b", "no"],
        ["2", "a", "yes"],
    ]
    one = ask("query", "kinds", "b", "--row", "10.3,0.2", "--explain-scores")
    assert re.search(r"^yes \(score .*, threshold .*, gate .*, rejection .*, kinds version 1\)", one.stdout)
    np.save(file, np.zeros(3))
    assert ask("query", "kinds", "b", "--file", str(file)).exit_code == 1
    file.write_bytes(b"no array")
    assert ask("query", "kinds", "b", "--file", str(file)).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["query", "kinds", "b", "--row", "1,2,3"], "HTTP 400"),
        (["query", "kinds", "z", "--row", "1,2"], "HTTP 404"),
        (["query", "nothing", "b", "--row", "1,2"], "HTTP 404"),
        (["jobs", "show", "job_none"], "HTTP 404"),
        (["jobs", "wait", "job_none"], "HTTP 404"),
        (["train", "ds_none", "--model", "m"], "HTTP 404"),
        (["jobs", "list", "--state", "nonsense"], "HTTP 4"),
    ],
)
def test_what_the_server_refuses_is_told_and_ends_with_1(ask, trained, arguments, message):
    result = ask(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.long
def test_a_job_can_be_started_without_waiting_and_cancelled(ask, trained, tmp_path):
    # So many rows and points that no machine is done before the job is cancelled.
    rows = np.random.default_rng(0).normal(size=(5000, 20)).round(3)
    lines = [",".join([*map(str, row), f"class{k % 7}"]) for k, row in enumerate(rows)]
    file = tmp_path / "noise.csv"
    file.write_text("\n".join(lines), encoding="utf-8")
    dataset = json.loads(ask("datasets", "upload", str(file), "--json").stdout)["id"]
    started = ask("train", dataset, "--model", "other", "--no-wait", "--set", "tuning.strategy=exhaustive")
    assert started.exit_code == 0
    found = re.search(r"Job (\S+) is accepted; follow it with `stms jobs wait", started.stdout)
    assert found
    assert ask("jobs", "cancel", found[1]).exit_code == 0
    waited = ask("jobs", "wait", found[1])
    assert waited.exit_code == 1
    assert "ended cancelled" in waited.stderr
    again = ask("jobs", "retry", found[1])
    assert again.exit_code == 0
    assert ask("jobs", "wait", found[1]).exit_code == 0
    assert "Delete that first" in ask("jobs", "delete", found[1]).stderr
    refused = ask("models", "delete", "other", "1")
    assert (refused.exit_code, "Move it first" in refused.stderr) == (1, True)
    for arguments in (("models", "unalias", "other", "latest"), ("models", "delete", "other", "1")):
        assert ask(*arguments).exit_code == 0
    assert ask("jobs", "delete", found[1]).exit_code == 0
    assert "There is no training job" in ask("jobs", "show", found[1]).stderr


@pytest.mark.long
def test_training_can_be_asked_for_as_json(ask, trained):
    dataset = json.loads(ask("datasets", "list", "--json").stdout)[0]["id"]
    result = ask("train", dataset, "--model", "third", "--json", "--set", "publish=false")
    assert result.exit_code == 0
    job = json.loads(result.stdout)
    assert (job["state"], job["hyperparameters"]["automatic"]) == ("succeeded", True)
    assert "Chosen: " in job["provenance"]["features"]["reason"]
    quick = ["--set", "publish=false", "--set", "automatic=false"]
    accepted = ask("train", dataset, "--model", "third", "--json", "--no-wait", *quick)
    assert json.loads(accepted.stdout)["state"] in {"queued", "running"}
    assert ask("jobs", "wait", json.loads(accepted.stdout)["id"]).exit_code == 0


@pytest.mark.long
def test_a_class_between_two_others_is_learnt_with_several_rejections(ask, tmp_path):
    """A linear gSVM never says yes to the blob in the middle; a polytope of two pieces finds it."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3)) + np.repeat([[0, 0, 0], [2, -2, 0], [4, -4, 0]], 100, axis=0)
    table = [[*map("{:.4f}".format, row), "abc"[n // 100]] for n, row in enumerate(rows)]
    file = tmp_path / "blobs.csv"
    file.write_text("\n".join(map(",".join, table)), encoding="utf-8")
    options = ["evaluation.test_fraction=0.3", "features.kind=linear", "student.method=polytope"]
    options += ["student.pieces=2", 'evaluation.baselines=["gsvm"]']
    parameters = [part for option in options for part in ("--set", option)]
    job = json.loads(ask("train", str(file), "--model", "blobs", "--json", *parameters).stdout)
    assert job["state"] == "succeeded"
    students = json.loads(ask("jobs", "students", job["id"], "--json").stdout)
    f1 = {row["method"]: row["metrics"]["f1"] for row in students if row["label"] == "b"}
    assert f1["polytope"] > f1["teacher"] - 0.02
    assert f1["gsvm"] < 0.5
    answer = ask("query", "blobs", "b", "--row", "2,-2,0", "--explain-scores")
    assert re.match(r"yes \(score .*, gate .*, rejection .*, piece [01], ", answer.stdout), answer.stdout
    assert ask("query", "blobs", "b", "--row", "0,0,0").stdout.startswith("no (score -")
