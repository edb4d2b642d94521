"""Records and texts in JavaScript beside the evaluator of Python: the same rows, scores, and refusals."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import Table, TextCells
from core.encoding.fit import fit_encoder
from core.packed import PackedStudent
from core.packed.encoded_columns import (
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    NumberColumn,
    TextColumn,
    VectorColumn,
)
from core.packed.encoder import Encoder
from core.packed.forms import GaussianForm
from core.packed.maps import BesideTerms, LinearBasis, PackedMap, RbfBasis
from core.packed.record_rows import RecordRows, canonical
from core.packed.term_table import TermTable
from core.packed.terms import FAMILIES, count_terms
from stms_client import InvalidInput
from stms_client.evaluator import Evaluator
from stms_client.results import Decision, Package
from tests.app.serving.written_records import (
    RECORD,
    encoder,
    numbers_encoder,
    random_form,
    refusing_encoder,
    text_encoder,
)

EVALUATE = Path(__file__).with_name("evaluate_records.mjs")
TOLERANCE = 1e-12
WORDS = (
    *("card", "lost", "Straße", "ÄRGER", "a", "x1", "ΣΟΦΟΣ", "ΑΣ.", "İstanbul", "가각", "हिन्दी", "don't"),
    *(
        "日本語の漢字",
        "ภาษาไทย",
        "e\u0301té",
        "🙂🙂",
        "𝐀",
        "Ω",
        "K",
        "ǅ",
        "\u1e9b\u0323",
        "٣٤",
        "–",
        "\x00",
        "\u2028",
    ),
)
"""Of several scripts, with letters whose lower case and form NFC are not alone what they are."""
UNICODE_14 = [
    chr(point) for point in range(0x80, 0x110000) if unicodedata.category(chr(point)) not in ("Cn", "Cs")
]

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")


def students(known: Encoder) -> list[PackedStudent]:
    layout, random = known.layout, np.random.default_rng(2)
    d, dense = layout.columns, layout.dense
    whole = RbfBasis(np.zeros(d), np.full(d, 0.1), random.normal(size=(6, d)))
    maps: list[PackedMap] = [LinearBasis(d), whole]
    if layout.terms and dense:
        rbf = RbfBasis(np.zeros(dense), np.full(dense, 0.1), random.normal(size=(6, dense)))
        maps.append(BesideTerms(rbf, layout.terms))
    made: list[PackedStudent] = []
    for packed in maps:
        p = packed.n_basis
        gaussian = GaussianForm(random.normal(size=p), 0.2, random.normal(size=(3, p)) / p)
        for form in (random_form(p, 1), random_form(p, 3), gaussian):
            made.append(PackedStudent(packed, form, 0.1, f"class {len(made)}"))
    return made


def found_in_javascript(
    known: Encoder, some: list[PackedStudent], records: Sequence[Any], folder: Path
) -> list[Any]:
    (folder / "encoder").write_bytes(known.to_bytes())
    for place, student in enumerate(some):
        (folder / f"student{place}").write_bytes(student.to_bytes())
    names = ",".join(str(folder / f"student{place}") for place in range(len(some)))
    (folder / "records").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    files = [str(folder / "encoder"), names, str(folder / "records"), str(folder / "found")]
    subprocess.run(["node", str(EVALUATE), *files], check=True, timeout=1200)
    return [json.loads(line) for line in (folder / "found").read_text("utf-8").split("\n")]


def evaluator(known: Encoder, some: list[PackedStudent]) -> Evaluator:
    encoded = known.to_bytes()
    digest = hashlib.sha256(encoded).hexdigest()
    packages = {}
    for student in some:
        data = student.to_bytes()
        tag = f'"1-{hashlib.sha256(data).hexdigest()}"'
        packages[student.label] = Package(data, tag, "m", 1, digest, None)
    return Evaluator(packages, encoded)


def compare(
    known: Encoder, records: Sequence[Any], folder: Path, some: list[PackedStudent] | None = None
) -> int:
    """Asserts that rows have the same bits but for waves of dates, that no match and scores only by rounding
    differ, and that the same records are refused. Returns how many were answered.
    """
    some = students(known) if some is None else some
    found = found_in_javascript(known, some, records, folder)
    assert len(found) == len(records)
    in_python, rows = evaluator(known, some), RecordRows(known)
    answered = 0
    for record, javascript in zip(records, found, strict=True):
        x, text = (None, record) if isinstance(record, str) else (record, None)
        decisions = decisions_on(in_python, some, x, text)
        assert (decisions is None) == ("refused" in javascript), (record, javascript)
        if decisions is None:
            continue
        answered += 1
        for student, decision, (score, match) in zip(some, decisions, javascript["found"], strict=True):
            scale = max(1.0, float(np.abs(student.form.coef).sum(axis=-1).max()))
            largest = max([1.0, *map(abs, javascript["dense"])])
            assert abs(score - decision.score) <= TOLERANCE * scale * largest, (record, student.label)
            assert match == decision.match
        if javascript["dense"] or javascript.get("columns"):
            same_row(known, rows, record, javascript)
    return answered


def decisions_on(
    asked: Evaluator, some: list[PackedStudent], x: Any, text: str | None
) -> list[Decision] | None:
    """None for a row that is refused."""
    try:
        return [asked.decision(student.label, x, text) for student in some]
    except InvalidInput:
        return None


def same_row(known: Encoder, rows: RecordRows, record: Any, javascript: dict[str, Any]) -> None:
    given = {known.text_column: record} if isinstance(record, str) else record
    row = rows.encode([canonical(column, given.get(column.name)) for column in rows.columns])
    is_date = np.array([column.kind is Kind.DATE for column in known.columns for _ in range(column.width)])
    mine, theirs = np.array(row.dense), np.array(javascript["dense"], dtype=np.float64)
    if row.filled:
        # Equations are solved with sums in another order.
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)
        return
    np.testing.assert_array_equal(mine[is_date == 0], theirs[is_date == 0])
    np.testing.assert_allclose(mine[is_date == 1], theirs[is_date == 1], rtol=0, atol=TOLERANCE)
    order = np.argsort(row.columns, kind="stable")
    assert row.columns[order].tolist() == sorted(javascript["columns"])
    by_column = dict(zip(javascript["columns"], javascript["values"], strict=True))
    assert [by_column[column] for column in row.columns.tolist()] == row.values.tolist()


def some_records(n: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Records of `written_records.people`, with gaps, rare and unseen values."""
    random = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    return [
        {
            "age": one_of(None, float(random.normal(40, 10)), 5e-324),
            "hours": one_of(40, 1e20, -0.0, float(random.normal())),
            "member": one_of(True, False),
            "job": one_of("clerk", " cook ", "judge", "pilot", "NA", None, "Größe", 7),
            "grade": one_of(3, 3.0, "3.0", " 4", 0.1, 1.5e-5, "+5", -0.0, True, "TRUE", "1e3", 1e15),
            "since": one_of(
                *(
                    "2021-05-06",
                    "1999-12-31T23:59:59.9999999+02:00",
                    "2020-02-29 00:00Z",
                    "9999-12-31",
                    "0001-01-01",
                ),
                *("2021-05-06T07:08:09.5-0730", "2021-05-06T07:08+10:99", " 2021-05-06 "),
            ),
            "place": [float(random.normal()), int(random.integers(9))],
            "note": " ".join(random.choice(WORDS, int(random.integers(0, 12)))),
        }
        for _ in range(n)
    ]


WRONG: list[dict[str, Any]] = [
    {"wages": 3},
    {"hours": "many"},
    {"hours": None},
    {"hours": True},
    {"age": 1e300},
    {"member": 1},
    {"since": 3},
    {"place": [1.0]},
    {"place": [1.0, "x"]},
    {"place": [1.0, 1e300]},
    {"job": ["clerk"]},
    {"job": "x" * 5000},
    {"job": "ä" * 2049},
    {"note": 3},
    *(
        {"since": text}
        for text in (
            *("2021-02-29", "2021-13-01", "0000-01-01", "2021-05-06T24:00", "2021-05-06T07:60", "2021-5-6"),
            *("2021-05-06T07:08:60", "2021-05-06T07:08+23:60", "2021-05-06T07", "06/05/2021", "2021-04-31"),
        )
    ),
]


def test_records_of_every_kind_of_column_have_the_answers_of_python(tmp_path: Path):
    known = encoder(with_note=True)
    records = [*some_records(400), *(RECORD | {"note": "card"} | change for change in WRONG), RECORD, {}, []]
    assert compare(known, records, tmp_path) == 401
    # "note" is a text, which may be empty, but not without a value.
    plain = [
        {name: value for name, value in record.items() if name != "note"} for record in some_records(200)
    ]
    assert compare(encoder(), plain, tmp_path) == 200


def test_gaps_that_other_columns_fill_have_the_answers_of_python(tmp_path: Path):
    known = encoder(answers_gaps=True)
    some = [replace(student, gaps=(-0.25, 0.5)) for student in students(known)]
    random = np.random.default_rng(7)
    records: list[dict[str, Any]] = [
        {name: value for name, value in RECORD.items() if random.random() < share}
        for share in (0.3, 0.6, 0.9)
        for _ in range(40)
    ]
    records += [RECORD | {"hours": None, "grade": " NA "}, RECORD | {"place": None}]
    given = [record for record in records if record]
    assert compare(known, [*given, {}], tmp_path, some) == len(given)


def test_values_that_training_did_not_have_and_rows_of_numbers(tmp_path: Path):
    strict = [RECORD | {"job": job} for job in ("clerk", "judge", "pilot", None, "NA", 3)]
    assert 0 < compare(refusing_encoder(), strict, tmp_path) < len(strict)
    numbers = [
        [0.5, -1.0],
        {"p": 0.5, "q": -1},
        [0.5],
        {"p": 1.0},
        {"p": None, "q": 1},
        {"kind": 3, "p": 1, "q": 1},
    ]
    assert compare(numbers_encoder(), numbers, tmp_path) == 3


def test_texts_have_the_terms_of_python(tmp_path: Path):
    random = np.random.default_rng(1)
    texts = [" ".join(random.choice(WORDS, int(random.integers(1, 40)))) for _ in range(300)]
    table = Table(("text",), (TextCells.of(texts),))
    known = fit_encoder(table, infer_schema(table, {"text": KindSpec(Kind.TEXT)}))
    asked = [
        *texts[:100],
        *("".join(random.choice(list("aÄ ßΣ.日ก🙂"), 12)) for _ in range(200)),
        "",
        " ",
        "?",
        "N/A",
    ]
    assert compare(known, asked, tmp_path) == len(asked)
    assert compare(text_encoder(), [*asked[:50], "word " * 20_000, "ä日" * 20_000], tmp_path) == 52


@pytest.mark.long
def test_characters_of_unicode_14_have_the_terms_of_python_and_younger_letters_are_refused(tmp_path: Path):
    """Each character between others in a random order, whose terms are all known."""
    random = np.random.default_rng(3)
    others = [
        letter for letter in UNICODE_14 if not (is_ideograph(letter) or unicodedata.category(letter) == "Co")
    ]
    letters = [others[place] for place in random.permutation(len(others))]
    texts = ["a" + "".join(letters[start : start + 200]) for start in range(0, len(letters), 200)]
    known = all_terms(texts)
    assert compare(known, texts, tmp_path, students(known)[:1]) == len(texts)
    javascript = found_in_javascript(
        known, students(known), ["x \u0897 y", "a\ud800", "🫨 smiles", "𱍐"], tmp_path
    )
    assert ["refused" in one for one in javascript] == [True, True, False, False]
    assert "U+897, which Unicode 14 does not know" in javascript[0]["refused"]


def is_ideograph(letter: str) -> bool:
    return unicodedata.name(letter, "").startswith(("CJK UNIFIED", "HANGUL SYLLABLE", "TANGUT", "CUNEIFORM"))


def all_terms(texts: Sequence[str]) -> Encoder:
    """Of every family some of the terms of texts."""
    tables = []
    for family in FAMILIES:
        terms = np.unique(count_terms(list(texts), family).terms)[:: 40 if family == "words" else 80]
        idf = np.random.default_rng(0).integers(1, 64 << 16, len(terms))
        tables.append(TermTable(family, terms, idf, 700_000))
    return Encoder((TextColumn("text", True, tuple(tables)),), (), np.zeros(0))


@pytest.mark.long
@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="This Python knows other characters")
def test_the_characters_of_unicode_14_are_those_of_python():
    program = """
    import { readFileSync } from "node:fs";
    const source = readFileSync(process.argv[1], "utf8");
    const distances = /const BOUNDS = `([^`]*)`/.exec(source)[1].trim().split(/\\s+/);
    console.log(JSON.stringify(distances.map((distance) => parseInt(distance, 36))));
    """
    module = EVALUATE.parents[2] / "stms_client" / "js" / "stms-records.mjs"
    ran = subprocess.run(
        ["node", "--input-type=module", "-e", program, str(module)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    bounds = np.cumsum(json.loads(ran.stdout))
    is_known = np.zeros(sys.maxunicode + 2, dtype=np.int64)
    np.add.at(is_known, bounds, np.where(np.arange(len(bounds)) % 2 == 0, 1, -1))
    known = np.flatnonzero(np.cumsum(is_known)[:-1])
    expected = [
        point for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point)) not in ("Cn", "Cs")
    ]
    np.testing.assert_array_equal(known, expected)


def of_columns(*columns: ColumnEncoder) -> Encoder:
    width = sum(column.width for column in columns)
    return Encoder(columns, (), np.zeros(width))


DATE = DateColumn("since", False, 0, 86_400_000_000, ("hour", "weekday", "yearday"), True, None, 0, 1)
NUMBER = NumberColumn("x", True, 0.5, False, 0.0, 1.0)


PARTS = (
    *"0123456789.,-+'%()$€ ",
    *("1.200", "1,5", "12", "٤٢", "١", "−", "\u202f", "’", " kg", "KG", "kgs", "USD ", "US$", "kr.", "years"),
    *("e3", "x", "A", "²", "٫", "\u200f", "100", "#", "/", ":", ".–", ",-", "０"),
)


def test_texts_of_numbers_are_the_numbers_of_python(tmp_path: Path):
    """Texts of parts of numbers in any order, of which many are numbers and most are not."""
    random = np.random.default_rng(5)
    patterns = (None, "1,234.5", "1.234,5", "$1,234.5", "1.234,5 kg", "1,234.5%", "kr. 1.234,5")
    known = of_columns(
        *(
            NumberColumn(f"n{place}", False, 0.5, True, -1.0, 1.0, False, pattern, ("-", "not measured"))
            for place, pattern in enumerate(patterns)
        ),
        DateColumn("d", False, 0, 0, (), True, "%d/%m/%Y", 0, 10**15, ("00/00/0000",)),
    )
    texts = ["-", " not measured ", "NA", "n.a.", "", "1e400", "9" * 49, "1.5", "+1", "007", "-0"]
    texts += ["".join(random.choice(PARTS, int(random.integers(1, 6)))) for _ in range(300)]
    records: list[Any] = [{f"n{place}": text} for text in texts for place in range(len(patterns))]
    dates = ("05/06/2001", "2001-06-05", "00/00/0000", "2001-06-05 07:08+02", "0000-00-00", "31/06/2001")
    records += [{"d": text} for text in dates]
    assert len(texts) < compare(known, records, tmp_path) < len(records) / 2


@pytest.mark.long
@pytest.mark.parametrize(
    "pattern",
    ["%d/%m/%Y", "%d.%m.%y", "%Y%m%d", "%m/%d/%Y %H:%M:%S", "%Y-%m-%d %H.%M.%S.%f", "on %d %m %Y (%%)"],
)
def test_dates_of_a_pattern_have_the_moments_of_python(pattern: str, tmp_path: Path):
    column = DateColumn("since", False, 0, 5, ("hour", "yearday"), True, pattern, 0, 1)
    texts = [
        *("06/05/2021", "6/5/2021", "31/4/2021", "29/02/2020", "06.05.68", "06.05.69", "20210506", "2021056"),
        *("12/31/2021 23:59:59", "1/2/2021  3:4:5", "2021-05-06 07.08.09.5", "2021-05-06 07.08.60.123456"),
        *(
            "On 06 05 2021 (%)",
            "on  6 5  2021 (%)",
            "06/05/2021 ",
            "06/05/2021x",
            "0/5/2021",
            " 6/05/2021",
            "NA",
        ),
    ]
    assert compare(of_columns(NUMBER, column), [{"x": 1.0, "since": text} for text in texts], tmp_path) >= 1


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (DateColumn("since", False, 0, 0, (), False, "%d %b %Y", 0, 1), "pattern %d %b %Y"),
        (DateColumn("since", False, 0, 0, (), False, "%d/%m", 0, 1), "pattern %d/%m"),
        (DateColumn("since", False, 0, -(2**54) - 7, (), False, None, -(2**54), 1), "too far from 1970"),
    ],
)
def test_what_javascript_cannot_say_is_refused_by_name(column: DateColumn, words: str, tmp_path: Path):
    known = of_columns(NUMBER, column)
    [refused] = found_in_javascript(known, students(known), [{"x": 1.0}], tmp_path)
    assert words in refused["refused"]


def test_values_that_javascript_cannot_tell_apart_are_refused_by_name(tmp_path: Path):
    city = CategoryColumn("city", False, ("7",), (), True, True)
    pattern = DateColumn("since", False, 0, 0, (), False, "%d/%m/%Y", 0, 1)
    known = of_columns(NUMBER, city, pattern)
    records = [{"x": 1, "city": 2**53}, {"x": 1, "since": "٣1/05/2021"}, {"x": 1, "city": "a\u0897"}]
    found = found_in_javascript(known, students(known), records, tmp_path)
    for one, words in zip(found, ("from 2^53 on", "not evaluated in JavaScript", "Unicode 14"), strict=True):
        assert words in one["refused"]


def test_vectors_and_gaps_of_all_kinds(tmp_path: Path):
    columns = (
        VectorColumn("v", False, np.array([0.5, 1.5]), True),
        NumberColumn("n", False, 3.0, True, 0.0, 1.0),
        NumberColumn("t", False, 1.0, True, 0.0, 1.0, is_truth=True),
        CategoryColumn("c", False, ("NA", "x"), ("y",), False, True),
        CategoryColumn("d", True, ("x",), (), False, False),
        DATE,
    )
    usual: dict[str, Any] = {"v": [1, 2], "n": 1, "t": True, "c": "x", "d": "x", "since": "2020-01-01"}
    changes: list[dict[str, Any]] = [
        *({name: None} for name in usual),
        {"c": "NA"},
        {"c": "N/A"},
        {"d": "NA"},
        {"v": "NA"},
        {"c": "z"},
    ]
    records = [usual, *(usual | change for change in changes), {"d": "x"}, {"d": "x", "constructor": 1}]
    assert compare(of_columns(*columns), records, tmp_path) == 11


FOLLOWING = """
import { readFileSync } from "node:fs";
import { Local } from "MODULE";
const asked = [];
let version = 4, digest = "d";
const fetch = async (url) => {
  asked.push(url.slice(url.lastIndexOf("models/")));
  const headers = { etag: `"${version}-x"`, "x-model": "m", "x-model-version": `${version}` };
  headers["x-encoder"] = digest;
  const file = url.endsWith("encoder") ? "FOLDER/encoder" : "FOLDER/student0";
  return new Response(readFileSync(file), { headers });
};
const local = new Local("http://stms.test", "m", ["a"], { fetch });
local.plan = () => {};
await local.follow();
const said = [local.query("a", RECORD)];
version = 5;
await local.pollOnce();
said.push(local.query("a", RECORD));
digest = "e";
version = 6;
await local.pollOnce();
said.push(local.query("a", RECORD));
const wrong = [[1, 2], "a text", { wages: 3 }].map((x) => {
  try { return local.query("a", x); } catch (error) { return error.name; }
});
console.log(JSON.stringify({ said, asked, wrong }));
"""


def test_a_program_fetches_the_encoder_of_a_version_once(tmp_path: Path):
    known = encoder()
    student = students(known)[0]
    found_in_javascript(known, [student], [RECORD], tmp_path)
    program = FOLLOWING.replace("MODULE", (EVALUATE.parents[2] / "stms_client/js/stms-local.mjs").as_uri())
    program = program.replace("FOLDER", str(tmp_path)).replace("RECORD", json.dumps(RECORD))
    (tmp_path / "program.mjs").write_text(program, "utf-8")
    ran = subprocess.run(
        ["node", str(tmp_path / "program.mjs")], check=True, timeout=60, capture_output=True, text=True
    )
    found = json.loads(ran.stdout)
    expected = evaluator(known, [student]).decision(student.label, RECORD, None)
    assert [one["version"] for one in found["said"]] == [4, 5, 6]
    assert all(one["score"] == pytest.approx(expected.score, rel=TOLERANCE) for one in found["said"])
    package, encoded = "/classes/a/package", "/classes/a/encoder"
    assert found["asked"] == [
        *(f"models/m{package}", f"models/m%404{encoded}"),
        *(f"models/m{package}", f"models/m{package}", f"models/m%406{encoded}"),
    ]
    assert found["wrong"] == ["RangeError"] * 3


@pytest.mark.long
@pytest.mark.no_cover
@pytest.mark.timeout(1200)
def test_100_000_records_have_the_answers_of_python(tmp_path: Path):
    assert compare(encoder(with_note=True), some_records(100_000, seed=7), tmp_path) == 100_000


ANSWERED_VALUES = [
    "{...record, since: new Date('2020-02-29T12:34:56.789Z')}",
    "{...record, job: new Date(0)}",
    "{...record, job: new Date(NaN)}",
    "{...record, age: NaN}",
    "{...record, age: undefined}",
    "{...record, age: -0}",
    "{...record, age: new Number(41)}",
    "{...record, job: new String('cook')}",
    "{...record, job: NaN}",
    "{...record, member: new Boolean(false)}",
    "{...record, since: {toJSON: () => '2020-02-29'}}",
    "{...record, wages: undefined}",
    "Object.assign(Object.create(null), record)",
    "Object.assign(new (class Person {})(), record)",
    "{toJSON: () => record}",
]
REFUSED_VALUES = [
    "{...record, since: new Date(NaN)}",
    "{...record, since: new Date(2020, 1).getTime()}",
    "{...record, hours: NaN}",
    "{...record, hours: undefined}",
    "{...record, age: Infinity}",
    "{...record, age: 41n}",
    "{...record, age: '41'}",
    "{...record, age: new Date(0)}",
    "{...record, age: new Map()}",
    "{...record, job: 7n}",
    "{...record, job: new Map([['a', 1]])}",
    "{...record, job: new Set(['cook'])}",
    "{...record, job: Symbol('cook')}",
    "{...record, job: () => 'cook'}",
    "{...record, job: ['cook']}",
    "{...record, job: '\\ud800'}",
    "{...record, place: [0.5, NaN]}",
    "{...record, place: [, 0.5]}",
    "{...record, place: new BigInt64Array([1n, 2n])}",
    "{...record, place: new Map([[0, 1], [1, 2]])}",
    "{...record, wages: 1}",
    "{...record, wages: null}",
    "new Map(Object.entries(record))",
    "new Set(Object.values(record))",
    "[record]",
    "new Date(0)",
    "new Float64Array([1, 2])",
    "null",
    "undefined",
]


def values_in_javascript(
    known: Encoder, student: PackedStudent, record: Any, expressions: Sequence[str], folder: Path
) -> list[Any]:
    (folder / "encoder").write_bytes(known.to_bytes())
    (folder / "student").write_bytes(student.to_bytes())
    given = [str(folder / "encoder"), str(folder / "student"), json.dumps(record), json.dumps(expressions)]
    program = Path(__file__).with_name("evaluate_values.mjs")
    done = subprocess.run(["node", str(program), *given], check=True, timeout=60, capture_output=True)
    return list(json.loads(done.stdout))


def test_values_of_javascript_are_answered_as_their_json_or_refused(tmp_path: Path):
    known = encoder()
    student = students(known)[0]
    in_python = evaluator(known, [student])
    found = values_in_javascript(known, student, RECORD, [*ANSWERED_VALUES, *REFUSED_VALUES], tmp_path)
    for expression, (sent, score, why) in zip([*ANSWERED_VALUES, *REFUSED_VALUES], found, strict=True):
        assert (score is not None) == (expression in ANSWERED_VALUES), (expression, why)
        if score is not None:
            [decision] = decisions_on(in_python, [student], json.loads(sent), None) or [None]
            assert decision is not None, expression
            np.testing.assert_allclose(score, decision.score, rtol=TOLERANCE, err_msg=expression)
    assert (
        "Object.fromEntries"
        in found[[*ANSWERED_VALUES, *REFUSED_VALUES].index("new Map(Object.entries(record))")][2]
    )


def test_a_vector_may_be_a_typed_array(tmp_path: Path):
    known = encoder()
    expressions = ["record", "{...record, place: new Float64Array(record.place)}"]
    listed, typed = values_in_javascript(known, students(known)[0], RECORD, expressions, tmp_path)
    assert listed[1] == typed[1]


def test_rows_of_numbers_are_lists_of_numbers(tmp_path: Path):
    known = numbers_encoder()
    student = students(known)[0]
    answered = [
        "[0.5, -1]",
        "new Float64Array([0.5, -1])",
        "{p: 0.5, q: -1}",
        "{q: -1, p: 0.5, r: undefined}",
    ]
    refused = ["[0.5, NaN]", "[0.5, 1n]", "[0.5,,]", "[0.5, undefined]", "[0.5, '1']", "[0.5, new Date(0)]"]
    refused += [
        "new Map([['p', 0.5], ['q', -1]])",
        "new BigInt64Array(2)",
        "{0: 0.5, 1: -1, length: 2}",
        "'ab'",
    ]
    found = values_in_javascript(known, student, None, [*answered, *refused], tmp_path)
    scores = [score for _, score, _ in found]
    assert len(set(scores[: len(answered)])) == 1
    assert scores[0] is not None
    assert scores[len(answered) :] == [None] * len(refused)
