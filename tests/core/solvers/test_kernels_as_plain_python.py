"""The kernels without compilation: the same answers from the Python that numba was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from core.solvers import (
    block_sweeps,
    crammer_singer,
    dual_cd,
    plane_search,
    products,
    proximal_block_newton,
    swept_examples,
)
from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem

SCRIPT = """
import json, sys
import numpy as np, scipy.sparse as sp
from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem

features, labels = np.array(json.loads(sys.argv[1])), np.array(json.loads(sys.argv[2]))
signs = np.where(labels == 0, 1.0, -1.0)
answers = []
for matrix in (features, sp.csr_array(features)):
    answers.append(solve_dual_cd(GatedHingeProblem.svm(matrix, signs, C=5.0)).objective)
    problem = CrammerSingerProblem(matrix, labels, 3, 0.5)
    answers.append(solve_crammer_singer(problem, tolerance=1e-7).objective)
print(json.dumps(answers))
"""


def test_kernels_give_the_same_answers_when_they_are_not_compiled():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(15, 3)), rng.integers(0, 3, 15)
    signs = np.where(labels == 0, 1.0, -1.0)
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(features.tolist()), json.dumps(labels.tolist())],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    student = solve_dual_cd(GatedHingeProblem.svm(features, signs, C=5.0)).objective
    teacher = solve_crammer_singer(CrammerSingerProblem(features, labels, 3, 0.5), tolerance=1e-7).objective
    assert json.loads(finished.stdout) == pytest.approx([student, teacher] * 2, rel=1e-6)


def test_kernels_run_step_by_step_in_this_process_too(monkeypatch, make_gated, make_multiclass):
    """Where a debugger and the coverage measurement can follow them."""
    student, teacher = make_gated(30, 4, 5.0, 10), make_multiclass(30, 4, 3, 0.5)

    def objectives() -> tuple[float, float]:
        # Tighter than the comparison: where the steps end differs by machine, as rounding does.
        return solve_dual_cd(student).objective, solve_crammer_singer(teacher, tolerance=1e-7).objective

    compiled = objectives()
    kernels = [
        (dual_cd, "sweep"),
        (swept_examples, "sweep"),
        (crammer_singer, "duality_terms"),
        (crammer_singer, "rivals_ahead"),
        (block_sweeps, "solve_block"),
        (proximal_block_newton, "solve_block"),
        (proximal_block_newton, "_respond"),
        (block_sweeps, "simplex_threshold"),
        (plane_search, "_difference"),
        (plane_search, "_project"),
        (plane_search, "_take"),
        (products, "_dots"),
    ]
    for module, name in kernels:
        kernel = getattr(module, name)
        monkeypatch.setattr(module, name, getattr(kernel, "py_func", kernel))
    assert objectives() == pytest.approx(compiled, rel=1e-6)


def test_the_steps_of_two_workers_are_combined_alike_when_not_compiled():
    W, one, two = np.random.default_rng(0).normal(size=(3, 2, 4))
    step = one + two - 2 * W
    expected = -(W * step).sum(), (step**2).sum()
    for kernel in (block_sweeps.line_search_terms, block_sweeps.line_search_terms.py_func):
        assert kernel(W, one, two) == pytest.approx(expected)
    for kernel in (block_sweeps.merge, block_sweeps.merge.py_func):
        merged, first, second = W.copy(), one.copy(), two.copy()
        kernel(merged, first, second, 0.5)
        for result in (merged, first, second):
            np.testing.assert_allclose(result, W + 0.5 * step)
