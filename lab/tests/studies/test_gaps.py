"""The study of gaps in queries, on a file made here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.benchmarks.inputs.sets import RawSet
from lab.studies import gaps


@pytest.mark.long
def test_a_table_has_figures_without_gaps_and_with_each_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rng = np.random.default_rng(0)
    sizes = rng.normal(50, 10, 240)
    words = ["large" if size > 50 else "small" for size in sizes]
    rows = [
        f"{size:.2f},{size / 2.54:.2f},{word},{'yes' if size > 55 else 'no'}"
        for size, word in zip(sizes, words, strict=True)
    ]
    (tmp_path / "few.csv").write_text("\n".join(["cm,inch,word,class", *rows]))
    monkeypatch.setenv("STMS_RAW", str(tmp_path))
    sets = {"titanic": RawSet("few.csv", "class"), "crx": RawSet("gone.csv", "class")}
    monkeypatch.setattr(gaps, "TABLES", sets)
    assert gaps.main(["--sets", "titanic", "crx", "--shares", "0.3"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found["by_set"]) == ["titanic"]
    figures = found["by_set"]["titanic"]
    assert (figures["rows"], figures["classes"], found["promises"]) == (180, 2, 2)
    assert figures["0"]["students"] > 95
    assert figures["0.3"]["students"] > figures["0.3"]["scikit"]
    assert found["f1_gain"]["0.3"] == figures["0.3"]["students"] - figures["0.3"]["scikit"]
    assert 0 <= found["kept"]["0.3"] <= 2
