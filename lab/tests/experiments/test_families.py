"""The report's part on the other families, from figures that are made up here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.experiments.families import main
from lab.experiments.report.families import FAMILIES
from lab.studies.learners.__main__ import PARTS, keep

SIDES = {
    "error": [1.5, 0.2],
    "log_loss": [0.1, 0.01],
    "error_less_gpc": [0.1, 0.2],
    "log_loss_less_gsvm": [0, 0.1],
}
FIGURES: dict[str, dict[str, Any]] = {
    "interpolation": {
        "mnist_rows": 60_000,
        "mnist_error": 0.0122,
        "mnist_minutes": 7.25,
        "mnist_peak_gib": 8.1,
        "mnist_students_f1_loss": 0.75,
        "mnist_student_time_ratio": 0.0042,
    },
    "mcodm": {
        "mcodm": {
            "vowel": {"ssvm": 2.0, "mcodm": 1.5, "gain": 0.5, "interval": [0.125, 0.875], "time_ratio": 0.24}
        },
        "mcodm_gain": 0.5,
        "mcodm_gain_interval": [0.25, 0.75],
        "mcodm_time_vs_ssvm": 0.24,
    },
    "margins": {
        "margins": {
            "vowel": {
                "svm": 4.0,
                "odm": 3.5,
                "odm-svm": [-0.5, 0.25],
                "gsvm0": 3.0,
                "odm-gated": 3.25,
                "odm-gated-gsvm0": [0.25, 0.125],
            }
        },
        "privileged": {"cwru_lupi": {"svm": 1.0, "svm+": 0.75, "svm+-svm": [-0.25, 0.5]}},
        "privileged_seconds": 0.18,
    },
    "gaussian": {
        "gaussian": {
            "cwru_lupi": {
                "svm": SIDES | {"error_less_svm": [0.0, 0.0]},
                "gpc": SIDES | {"error_less_svm": [-0.474, 0.315]},
            }
        },
        "gaussian_seconds_a_class": 0.3,
    },
    "measures": {
        "measures": {"mfeat": {"f1": [96.79, 96.47], "roc_area": [99.5, 99.75]}},
        "measures_won": 1,
        "measures_compared": 2,
        "measures_seconds": 0.3,
    },
    "labelling": {
        "labelling": {
            "usps": {
                "clusters": {
                    "odmc nmi": 80.0,
                    "odmc accuracy": 70.0,
                    "kmeans nmi": 60.0,
                    "kmeans accuracy": 75.0,
                    "spectral nmi": 82.5,
                    "spectral accuracy": 65.0,
                },
                "5": {"ssodm": 90.0, "svm": 80.0, "self-training": 85.0, "label spreading": 88.0},
            }
        },
        "odmc_nmi_vs_best": -2.5,
        "odmc_accuracy_vs_best": -5.0,
        "ssodm_accuracy_vs_best": {"5": 2.0},
    },
    "outside_scores": {
        "outside_scores": {
            "rows": 5000,
            "none": {"svm": 91.25},
            "forest": {"teacher": 92.78, "gsvm": 91.46, "polytope": 91.29},
        }
    },
    "remote": {
        "remote": {
            "rows": 5000,
            "largest_difference": 0.0,
            "seconds_per_1000_rows": 1.25,
            "students": {"gsvm": 71.5},
            "matrix": {"gsvm": 71.5},
        }
    },
}
SHOWN = {
    "interpolation": "| test error, % | 1.22 | ≤ 1.20 at 60 000 rows |",
    "mcodm": "| vowel | 2.00 | 1.50 | +0.50 [+0.12, +0.88] | 0.24 |",
    "margins": "| vowel | odm-gated | gsvm0 | 3.00 | 3.25 | +0.25 ± 0.12 |",
    "gaussian": "| gpc | 1.500 ± 0.200 | -0.474 ± 0.315 |",
    "measures": "| mfeat | roc_area | 99.50 | 99.75 | -0.25 |",
    "labelling": "| usps | 5 | 90.0 | 80.0 | 85.0 | 88.0 | +2.0 |",
    "outside_scores": "| forest |  | 92.8 | 91.5 | 91.3 |",
    "remote": "| largest difference of a score | 0.0e+00 | ≤ 1e-12 |",
}


def test_each_part_is_one_of_the_benchmark():
    assert {family.part for family in FAMILIES} <= set(PARTS)
    assert set(SHOWN) == {family.part for family in FAMILIES}


def test_every_family_has_its_table_figure_and_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    stored = tmp_path / "families.json"
    for part, figures in FIGURES.items():
        keep(stored, part, figures, 12.0, quick=part == "remote")
    assert main(["--results", str(stored), "--out", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out)["not_measured"] == []
    text = (tmp_path / "out" / "families.md").read_text(encoding="utf-8")
    for family in FAMILIES:
        assert SHOWN[family.part] in text, family.part
        assert (
            f"lab.studies.learners{' --quick' if family.part == 'remote' else ''} --only {family.part}`"
            in text
        )
        drawn = tmp_path / "out" / f"family-{family.part}.svg"
        assert drawn.is_file() == (family.figure is not None) == (f"({drawn.name})" in text)
    assert "+-svm" not in text
    assert "| usps | 80.0 | 70.0 | 60.0 | 75.0 | 82.5 | 65.0 |" in text
    again = (tmp_path / "out" / "family-mcodm.svg").read_bytes()
    main(["--results", str(stored), "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "family-mcodm.svg").read_bytes() == again


def test_what_was_not_measured_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    stored = tmp_path / "families.json"
    keep(stored, "remote", FIGURES["mcodm"], 1.0, quick=True)
    keep(stored, "remote", FIGURES["remote"], 2.0, quick=False)
    assert main(["--results", str(stored), "--out", str(tmp_path)]) == 0
    missing = json.loads(capsys.readouterr().out)["not_measured"]
    assert missing == [family.part for family in FAMILIES if family.part != "remote"]
    text = (tmp_path / "families.md").read_text(encoding="utf-8")
    assert text.count("Not measured.") == len(missing)
    assert "--quick" not in text
    assert main(["--results", str(tmp_path / "none.json")]) == 1
    assert "--store" in capsys.readouterr().err
