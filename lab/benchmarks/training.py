"""Training time and memory: the solvers against LIBLINEAR, LinearSVC and CVXPY, and against n.

    python -m lab.benchmarks.training [--clock cpu] [--teacher]

1. The teacher against LIBLINEAR's Crammer and Singer, one core each, at the same objective (``liblinear``):
   on letter with 1000 Nyström features, at C = 1000 (the end of the paper's grid), C = 3e4 and below; on
   linear features, 1040 x 617 of 26 classes.
2. All gSVM students of letter against as many LinearSVC(loss="hinge"), each as near to its optimum.
3. One student against CVXPY with Clarabel, on rows and features that CVXPY can do.
4. Teacher and student against the number of rows, m = 64.
5. Peak memory of teacher and students over that of the features, in a process of its own.

letter is read from $STMS_DATA or ../shared/data. Without it, random mixtures of the same size are used and a
message is printed. The last line is JSON; exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from core.data.dataset import LabelledData
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.solution import Solution
from core.solvers.threads import one_blas_thread
from core.students.difficulty import ScoreRanks, difficulty_degrees
from core.teachers.linear import LinearTeacher
from core.teachers.ssvm import SSVM
from core.types import FloatArray, IntArray
from lab.benchmarks.liblinear import TARGET_CS, TOLERANCE, compare_teachers, fastest, stopwatch, tolerances
from tests.system.data import arrays_of, data_folder

FEATURES = FeatureSpec("nystroem", 1000, 0.1)
STUDENT_C = 1e5
CVXPY_ROWS, CVXPY_FEATURES = 4000, 200
SIZES = (1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
TARGETS: dict[str, tuple[Callable[[float, float], bool], float]] = {
    "teacher_speedup_vs_liblinear": (float.__ge__, 5.0),
    "teacher_speedup_linear": (float.__ge__, 3.0),
    "students_speedup_vs_linearsvc": (float.__ge__, 1.0),
    "student_speedup_vs_cvxpy": (float.__ge__, 100.0),
    "worst_time_over_linear": (float.__le__, 1.3),
    "peak_memory_over_features": (float.__le__, 1.3),
}


def letter() -> LabelledData:
    """The training part of letter, or random mixtures of its size."""
    if (data_folder() / "letter.npz").is_file():
        with arrays_of("letter") as arrays:
            return LabelledData.from_arrays(arrays["X_train"], arrays["y_train"])
    print("letter.npz is not there (set STMS_DATA): random mixtures of its size take its place\n")
    X, y = mixtures(15_000, 16, 26)
    return LabelledData.from_arrays(X, y)


def mixtures(n: int, d: int, K: int) -> tuple[FloatArray, IntArray]:
    """K overlapping Gaussian classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, K, n)
    centres = rng.normal(size=(K, d))
    return rng.normal(size=(n, d)) + 0.5 * centres[y], y


def gated(
    features: FloatArray, y: IntArray, scores: FloatArray, k: int, ranks: ScoreRanks | None = None
) -> GatedHingeProblem:
    """The gSVM problem of class k. ranks: ranks of the scores; computed if None."""
    difficulty = difficulty_degrees(scores, y, k, floor=0.3, ranks=ranks)
    signs = np.where(y == k, 1.0, -1.0)
    return GatedHingeProblem.gated(
        features, signs, scores[:, k], C=STUDENT_C, margin=1.0, difficulty=difficulty
    )


def fit_linear_svc(problem: GatedHingeProblem, start: float, timed: Any) -> tuple[float, float]:
    """Seconds and tolerance of the loosest LinearSVC fit within ``TOLERANCE`` of the optimum."""
    lower_bound = solve_dual_cd(problem, tolerance=1e-5).dual_objective
    for tolerance in tolerances(start, 0.5):
        model = LinearSVC(
            loss="hinge", C=float(problem.bounds[0]), fit_intercept=False, tol=tolerance, max_iter=1_000_000
        )
        _, seconds = timed(partial(model.fit, problem.features, problem.signs))
        objective = problem.primal_objective(-model.coef_.ravel())
        if objective - lower_bound <= TOLERANCE * objective:
            return seconds, tolerance
    raise RuntimeError("LinearSVC did not come near the optimum")


def compare_students(
    features: FloatArray, data: LabelledData, scores: FloatArray, timed: Any
) -> dict[str, Any]:
    print(f"\n{data.K} gSVM students against {data.K} LinearSVC(loss='hinge'), C = {STUDENT_C:g}\n")

    ranks = ScoreRanks.of(scores)

    def fit(k: int) -> Solution:
        return solve_dual_cd(gated(features, data.y, scores, k, ranks), tolerance=TOLERANCE)

    def fit_all() -> list[Solution]:
        with one_blas_thread(), ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(fit, range(data.K)))

    solutions, ours = timed(fit_all)
    theirs, start = 0.0, 1.0
    for k in range(data.K):
        plain = GatedHingeProblem.svm(features, np.where(data.y == k, 1.0, -1.0), C=STUDENT_C)
        seconds, tolerance = fit_linear_svc(plain, start, timed)
        theirs, start = theirs + seconds, min(1.0, 8.0 * tolerance)
    worst = max(solution.relative_gap for solution in solutions)
    print(f"ours {ours:.1f} s, worst gap {worst:.1e}; LinearSVC {theirs:.1f} s, each within {TOLERANCE:g}")
    return {"students_speedup_vs_linearsvc": theirs / ours}


def by_cvxpy(problem: GatedHingeProblem) -> FloatArray:
    """θ of CVXPY with Clarabel at its own tolerance."""
    cvx: Any = cp
    theta = cvx.Variable(problem.shape[1])
    slacks = problem.targets + cvx.multiply(problem.signs, problem.features @ theta)
    model = cvx.Problem(cvx.Minimize(0.5 * cvx.sum_squares(theta) + problem.bounds @ cvx.pos(slacks)))
    model.solve(solver=cvx.CLARABEL)
    if theta.value is None:
        raise RuntimeError(f"Clarabel ended with status {model.status}")
    return np.asarray(theta.value)


def compare_cvxpy(data: LabelledData, timed: Any) -> dict[str, Any]:
    X, y = data.X[:CVXPY_ROWS], data.y[:CVXPY_ROWS]
    features = fit_feature_map(X, FeatureSpec("nystroem", CVXPY_FEATURES, 0.1), 0).transform(X)
    print(f"\nOne student against CVXPY with Clarabel, {features.shape}\n")
    teacher = solve_crammer_singer(
        CrammerSingerProblem(features, y, data.K, 1e3 / len(y)), tolerance=TOLERANCE
    )
    problem = gated(features, y, features @ teacher.value.T, 0)
    ours, seconds = fastest(partial(solve_dual_cd, problem, tolerance=1e-6), timed)
    theta, theirs = fastest(partial(by_cvxpy, problem), timed)
    difference = problem.primal_objective(theta) / ours.objective - 1.0
    print(
        f"ours {1e3 * seconds:.1f} ms, gap {ours.relative_gap:.1e}; CVXPY {theirs:.2f} s, its objective"
        f" {difference:+.1e} of ours -> {theirs / seconds:.0f} times"
    )
    return {"student_speedup_vs_cvxpy": theirs / seconds}


def compare_sizes(timed: Any) -> dict[str, Any]:
    """Slope of log time over log n, and the worst of (t_b / t_a) / (n_b / n_a) over sizes a < b."""
    print("\nTime against the number of rows, m = 64, 5 classes (default C and tolerance)\n")
    X, y = mixtures(SIZES[-1], 64, 5)
    X[:, -1] = 1.0
    seconds = []
    for n in SIZES:

        def fit(n: int = n) -> None:
            bound = SSVM().C / n
            teacher = solve_crammer_singer(CrammerSingerProblem(X[:n], y[:n], 5, bound), tolerance=TOLERANCE)
            solve_dual_cd(gated(X[:n], y[:n], X[:n] @ teacher.value.T, 0), tolerance=TOLERANCE)

        seconds.append(min(timed(fit)[1] for _ in range(3 if n <= 1e5 else 1)))
        print(f"n = {n:8d}  {seconds[-1]:8.3f} s  {1e6 * seconds[-1] / n:7.2f} µs a row")
    exponent = float(np.polyfit(np.log(SIZES), np.log(seconds), 1)[0])
    per_row = np.array(seconds) / np.array(SIZES)
    worst = max(float(per_row[b] / per_row[a]) for a in range(len(SIZES)) for b in range(a + 1, len(SIZES)))
    return {"time_exponent_in_n": exponent, "worst_time_over_linear": worst}


def in_memory(entry: str) -> int:
    """Resident memory of this process in bytes: current (``VmRSS``) or peak (``VmHWM``).

    ``ru_maxrss`` is not used, because it starts with the memory of the parent process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(entry + ":"))


def probe_memory(file: Path) -> float:
    """Peak memory of training, without the interpreter's own memory, divided by the bytes of Φ."""
    compile_kernels()
    baseline = in_memory("VmRSS")
    with np.load(file, allow_pickle=False) as arrays:
        features, y = arrays["features"], arrays["y"]
    K = int(y.max()) + 1
    problem = CrammerSingerProblem(features, y, K, TARGET_CS[0] / len(y))
    with one_blas_thread(), ThreadPoolExecutor(os.cpu_count()) as pool:
        teacher = solve_crammer_singer(problem, tolerance=TOLERANCE)
        scores = LinearTeacher(teacher.value).feature_scores(features)
        ranks = ScoreRanks.of(scores)
        del problem, teacher  # a student needs the scores only
        fits = pool.map(
            lambda k: solve_dual_cd(gated(features, y, scores, k, ranks), tolerance=TOLERANCE).objective,
            range(K),
        )
        list(fits)
    return float((in_memory("VmHWM") - baseline) / features.nbytes)


def measure_memory(features: FloatArray, y: IntArray) -> dict[str, Any]:
    print("\nPeak memory of teacher and students over that of the features, in a process of its own")
    with tempfile.TemporaryDirectory(prefix="stms-bench-") as folder:
        file = Path(folder) / "features.npz"
        np.savez(file, features=features, y=y)
        finished = subprocess.run(
            [sys.executable, "-m", "lab.benchmarks.training", "--probe-memory", str(file)],
            capture_output=True,
            text=True,
            check=True,
        )
    ratio = float(finished.stdout.splitlines()[-1])
    print(f"{ratio:.2f} times\n")
    return {"peak_memory_over_features": ratio}


def compile_kernels() -> None:
    """Compile the solvers, so that the measured times do not include compilation."""
    features = np.random.default_rng(0).normal(size=(2000, 4))
    labels = np.arange(2000) % 3
    solve_dual_cd(GatedHingeProblem.svm(features, np.where(labels == 0, 1.0, -1.0), C=1e5))
    solve_crammer_singer(CrammerSingerProblem(features, labels, 3, 1.0), tolerance=1e-6, max_epochs=200)


def run(clock: str, *, teacher_alone: bool) -> dict[str, Any]:
    """Run all five parts, or the first. Returns the content of the last line."""
    timed = stopwatch(clock)
    compile_kernels()
    data = letter()
    features = fit_feature_map(data.X, FEATURES, 0).transform(data.X)
    figures = compare_teachers(features, data, timed)
    if teacher_alone:
        return figures
    problem = CrammerSingerProblem(features, data.y, data.K, 1e3 / data.n)
    scores = features @ solve_crammer_singer(problem, tolerance=TOLERANCE).value.T
    figures |= compare_students(features, data, scores, timed)
    figures |= compare_cvxpy(data, timed)
    figures |= measure_memory(features, data.y)
    return figures | compare_sizes(timed)


def main() -> int:
    """Exit code: 0 when every target is reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="wall time (default), or the CPU time of all threads on a busy machine",
    )
    parser.add_argument(
        "--teacher", action="store_true", help="only the first part, the teacher against LIBLINEAR"
    )
    parser.add_argument(
        "--probe-memory",
        type=Path,
        metavar="FILE",
        help="only the memory ratio, on the features in an npz file",
    )
    arguments = parser.parse_args()
    if arguments.probe_memory:
        print(probe_memory(arguments.probe_memory))
        return 0
    warnings.simplefilter("ignore", ConvergenceWarning)
    figures = run(arguments.clock, teacher_alone=arguments.teacher)
    missed = [
        name
        for name, (good, target) in TARGETS.items()
        if name in figures and not good(float(figures[name]), target)
    ]
    for name in missed:
        print(f"{name} is {figures[name]:.3g}, the target {TARGETS[name][1]:g}", file=sys.stderr)
    print(json.dumps({name: round(x, 4) if isinstance(x, float) else x for name, x in figures.items()}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
