"""What ``from core import ...`` offers: everything listed, nothing loaded before it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import core

ROOT = Path(__file__).parents[2]
HEAVY = {"numba", "sklearn", "scipy", "joblib", "numpy"}


@pytest.mark.parametrize("name", core.__all__)
def test_every_public_name_is_there_and_documented(name: str):
    assert getattr(core, name).__doc__


def test_each_name_is_listed_once():
    stub = Path(core.__file__).with_suffix(".pyi").read_text(encoding="utf-8").splitlines()
    assert len(stub) == len(core.__all__)


def test_the_public_names_are_listed():
    assert set(core.__all__) <= set(dir(core))


def test_a_star_import_gives_the_public_names():
    namespace: dict[str, object] = {}
    exec("from core import *", namespace)
    assert set(core.__all__) <= set(namespace)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'teach'"):
        core.teach  # noqa: B018


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert not loaded_after("import core") & HEAVY


def test_a_packed_student_is_to_be_had_without_training_code():
    assert not loaded_after("from core import PackedStudent, InvalidProblem") & (HEAVY - {"numpy"})


def test_the_package_does_what_its_docstring_says():
    assert "train" in (core.__doc__ or "")
    X = [[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.2], [5.0, 5.0], [5.1, 4.9]]
    data = core.LabelledData.from_arrays(X, [7, 7, 8, 8, 9, 9])
    model = core.train(data, core.TrainingConfig(features=core.FeatureSpec("linear")))
    assert model.students["7"].decide(X).tolist() == [True, True, False, False, False, False]
