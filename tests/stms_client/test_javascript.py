"""The JavaScript module beside core.packed: no flips, and scores that differ by rounding only."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.packed import PackedStudent
from tests.reference.packed_students import CASES, some_rows

EVALUATE = Path(__file__).with_name("evaluate.mjs")
MODULE = Path(__file__).parents[2] / "stms_client" / "js" / "stms-local.mjs"
TOLERANCE = 1e-12

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")


def compare(student: PackedStudent, n: int, folder: Path) -> float:
    """Asserts that there is no flip; returns the largest difference of scores.

    It is relative to the size of sums: of the row where that is large, and of Σ |coef| where terms cancel.
    """
    X = np.ascontiguousarray(some_rows(student, n))
    (folder / "student").write_bytes(student.to_bytes())
    (folder / "rows").write_bytes(X.tobytes())
    files = [str(folder / name) for name in ("student", "rows", "found")]
    if student.shares_map:
        (folder / "map").write_bytes(student.map.to_bytes())
        files.append(str(folder / "map"))
    subprocess.run(["node", str(EVALUATE), *files], check=True, timeout=500)
    scores, matches, probabilities = np.fromfile(folder / "found").reshape(-1, 3).T
    expected = student.scores(X)
    np.testing.assert_array_equal(matches == 1.0, expected >= student.threshold)
    if student.calibration is None:
        assert np.isnan(probabilities).all()
    else:
        np.testing.assert_allclose(
            probabilities, student.calibration.probabilities(expected), rtol=1e-11, atol=1e-12
        )
    size = np.where(student.map.kind == "trees", 1.0, np.abs(X).max(axis=1))
    scale = max(1.0, float(np.abs(student.form.coef).sum(axis=-1).max()))
    return float((np.abs(scores - expected) / np.where(size > 100.0, size, 1.0)).max()) / scale


@pytest.mark.parametrize("case", CASES)
def test_rows_have_the_decisions_of_the_core(case: str, tmp_path: Path):
    assert compare(CASES[case], 1000, tmp_path) <= TOLERANCE


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("-linear-none")])
def test_a_map_in_a_package_of_its_own_gives_the_same_decisions(case: str, tmp_path: Path):
    assert compare(replace(CASES[case], shares_map=True), 1000, tmp_path) <= TOLERANCE


SHARED = """
import { readFileSync } from "node:fs";
import { Local } from "MODULE";
const asked = [];
let version = 4;
const fetch = async (url, { headers }) => {
  asked.push(url.split("/v1/models/")[1]);
  const part = url.split("/").at(-1);
  const etag = part === "map" ? `"${version}-DIGEST"` : `"${version}-x"`;
  if (headers["if-none-match"] === etag) return new Response(null, { status: 304 });
  return new Response(readFileSync(`FOLDER/${part}`), {
    headers: { etag, "x-model": "m", "x-model-version": String(version) },
  });
};
const local = new Local("http://stms.test/", "m", ["a", "b"], { poll: 0.1, maxStale: 4, fetch });
local.plan = () => {};
await local.follow();
const x = [1, 2, 3, 4, 5, 6], scores = [local.query("a", x).score, local.query("b", x).score];
await local.follow();
version = 5;
await local.follow();
scores.push(local.query("b", x).score);
const maps = asked.filter((url) => url.endsWith("map"));
console.log(JSON.stringify({ asked: maps, scores, version: local.version }));
"""


def test_a_program_fetches_the_map_of_several_classes_once(tmp_path: Path):
    student = replace(CASES["rbf-linear-none"], shares_map=True)
    (tmp_path / "package").write_bytes(student.to_bytes())
    (tmp_path / "map").write_bytes(student.map.to_bytes())
    program = SHARED.replace("MODULE", MODULE.as_uri()).replace("FOLDER", str(tmp_path))
    (tmp_path / "program.mjs").write_text(program.replace("DIGEST", student.map.digest), "utf-8")
    ran = subprocess.run(
        ["node", str(tmp_path / "program.mjs")], check=True, timeout=60, capture_output=True, text=True
    )
    found = json.loads(ran.stdout)
    assert (found["asked"], found["version"]) == (["m%404/classes/b/map"], 5)
    assert found["scores"] == pytest.approx(
        [student.score([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])] * 3, rel=TOLERANCE
    )


@pytest.mark.parametrize("case", ["linear-linear-none", "rbf_beside_terms-polytope-none"])
def test_numbers_of_float32_are_read(case: str, tmp_path: Path):
    student = CASES[case]
    assert compare(replace(student, form=student.form.in_single()), 1000, tmp_path) <= TOLERANCE


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", CASES)
def test_many_rows_have_the_decisions_of_the_core(case: str, tmp_path: Path):
    assert compare(CASES[case], 100_000, tmp_path) <= TOLERANCE


FOLLOWING = """
import { readFileSync } from "node:fs";
import { Local, Student } from "MODULE";
const bytes = readFileSync("PACKAGE");
const said = [];
const answers = [200, 304, 500, "silence", 403];
const asked = [];
const fetch = async (url, { headers, signal }) => {
  asked.push([url, headers["if-none-match"] ?? null, headers["x-stms-local"] ?? null]);
  const status = answers.shift();
  if (status === "silence") {
    const kept = setTimeout(() => {}, 30000);
    return new Promise((_, reject) => {
      signal.addEventListener("abort", () => { clearTimeout(kept); reject(signal.reason); });
    });
  }
  const body = status === 200 ? bytes : status === 304 ? null : JSON.stringify({ code: "gone" });
  const made = { etag: '"4-x"', "x-model": "m", "x-model-version": "4" };
  return new Response(body, { status, headers: made });
};
const local = new Local("http://stms.test/", "m@live", ["a/b"], { key: "k", poll: 0.1, maxStale: 4, fetch });
local.plan = () => {};
await local.follow();
const x = [1, 2, 3, 4, 5, 6];
const began = performance.now();
for (let look = 0; look < 4; look++) {
  said.push([local.isClass("a/b", x), local.version]);
  await local.pollOnce();
}
const seconds = (performance.now() - began) / 1000;
try { local.query("a/b", x); } catch (error) { said.push([error.status, error.code]); }
const wrong = [[1], [1, 2, 3, 4, 5, NaN], [1, 2, 3, 4, 5, 1e101], [1, 2, 3, 4, 5, "6"]].map((row) => {
  try { return new Student(bytes).score(row); } catch (error) { return error.name; }
});
console.log(JSON.stringify({ said, asked, wrong, seconds }));
"""


@pytest.mark.long
def test_a_program_follows_its_model_and_a_refusal_ends_its_answers(tmp_path: Path):
    student = CASES["linear-linear-none"]
    (tmp_path / "student").write_bytes(student.to_bytes())
    program = FOLLOWING.replace("MODULE", MODULE.as_uri()).replace("PACKAGE", str(tmp_path / "student"))
    (tmp_path / "program.mjs").write_text(program, "utf-8")
    ran = subprocess.run(
        ["node", str(tmp_path / "program.mjs")], check=True, timeout=60, capture_output=True, text=True
    )
    found = json.loads(ran.stdout)
    match = bool(student.score([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) >= student.threshold)
    assert found["said"] == [[match, 4]] * 4 + [[403, "gone"]]
    # A poll that is not answered at all is given up after half of `maxStale`.
    assert 2.0 <= found["seconds"] < 20.0
    url = "http://stms.test/v1/models/m%40live/classes/a%2Fb/package"
    # The answer 500 is no answer to the report of the second call; its number is said again with the third,
    # and the same with the poll that was given up.
    assert found["asked"] == [
        [url, None, None],
        [url, '"4-x"', "4:1"],
        [url, '"4-x"', "4:1"],
        [url, '"4-x"', "4:2"],
        [url, '"4-x"', "4:3"],
    ]
    assert found["wrong"] == ["RangeError"] * 4


NAMED = """
import { readFileSync } from "node:fs";
import { openLocal } from "MODULE";
const asked = [];
const fetch = async (url) => {
  asked.push(url.split("/").at(-2));
  const made = { etag: '"4-x"', "x-model": "m", "x-model-version": "4" };
  return new Response(readFileSync("PACKAGE"), { headers: made });
};
const local = await openLocal("http://stms.test", "m", [3, true, "a"], { fetch, poll: 50 });
const x = [1, 2, 3, 4, 5, 6];
const equal = [[3, "3"], [3.0, 3n], [true, "true"]].map(([one, other]) =>
  local.query(one, x).score === local.query(other, x).score);
console.log(JSON.stringify({ asked: asked.sort(), equal }));
local.close();
"""


def test_a_class_is_named_by_a_whole_number_or_a_truth_value(tmp_path: Path):
    (tmp_path / "student").write_bytes(CASES["linear-linear-none"].to_bytes())
    program = NAMED.replace("MODULE", MODULE.as_uri()).replace("PACKAGE", str(tmp_path / "student"))
    (tmp_path / "program.mjs").write_text(program, "utf-8")
    ran = subprocess.run(
        ["node", str(tmp_path / "program.mjs")], check=True, timeout=60, capture_output=True, text=True
    )
    assert json.loads(ran.stdout) == {"asked": ["3", "a", "true"], "equal": [True, True, True]}
