"""The study of default jobs on texts, on a file made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.benchmarks.inputs.sets import RawSet
from lab.studies import texts


def test_a_set_without_a_test_part_has_a_quarter_held_out_and_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rows = [
        f"{subject},please look at the {subject} of order {k}"
        for k in range(20)
        for subject in ["card", "fee", "limit"]
    ]
    (tmp_path / "few.csv").write_text("\n".join(["label,text", *rows, "lone,a class of one row"]))
    monkeypatch.setenv("STMS_RAW", str(tmp_path))
    monkeypatch.setattr(
        texts, "TEXTS", {"few": RawSet("few.csv", "label"), "gone": RawSet("gone.csv", "label")}
    )
    assert texts.main(["--sets", "few", "gone", "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found) == ["few"]
    assert (found["few"]["rows"], found["few"]["classes"]) == (45, 3)
    assert found["few"]["f1"] == {"teacher": 100.0, "automatic": 100.0}
