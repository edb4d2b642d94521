"""The terms of texts: compiled code and NumPy give the same bits."""

import copy
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data.table import TextCells
from core.encoding.fit import fit_terms
from core.packed import single_text
from core.packed.single_text import SingleTexts
from core.packed.term_table import TermTable, term_entries
from core.packed.terms import FAMILIES, MAX_TEXT_BYTES, TextBatch
from tests.compiled import compiled
from tests.sanitizers import run_sanitized

SOURCE = Path(single_text.__file__).with_name("_text_terms.c")
WORDS = ["my", "card", "is", "lost", "a", "b2", "Ärger", "I.O.U.", "日本語", "x" * 40, "", "9", "ok-ay", "犬"]
FITTED = [" ".join([WORDS[k % 14], WORDS[(k * 5) % 14], WORDS[(k * 7) % 11]]) for k in range(60)]


@cache
def tables(families):
    return fit_terms(TextCells.of(FITTED), families)


def check(known, text):
    columns, values = SingleTexts(known).find(text)
    _, expected_columns, expected = term_entries(known, [text])
    order = np.argsort(columns)
    np.testing.assert_array_equal(columns[order], expected_columns)
    assert values[order].tobytes() == expected.tobytes()
    return len(columns)


TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=30)


@compiled
@settings(max_examples=10 * settings().max_examples)
@given(
    families=st.lists(st.sampled_from(FAMILIES), min_size=1, unique=True),
    words=TEXTS,
    between=st.sampled_from([" ", ".", "\n", "\0", ""]),
)
def test_compiled_terms_have_the_bits_of_numpy(families, words, between):
    check(tables(tuple(families)), between.join(words))


@compiled
@pytest.mark.parametrize(
    "text", ["", " ", "a", "\ud800 my", "my " * 3000, "日本" * 9000, "x" * 70_000, "é" * 40_000]
)
def test_odd_and_long_texts(text):
    check(tables(FAMILIES), text)


@compiled
@pytest.mark.parametrize("families", [("words", "pairs"), ("words", "pairs", "characters3"), FAMILIES])
@pytest.mark.parametrize("text", ["", "my card is lost", "ok-ay card 日本語 Ärger", "my card " * 9000 + "é"])
def test_terms_have_the_same_order_without_compiled_code(families, text, monkeypatch):
    found = SingleTexts(tables(families)).find(text)
    monkeypatch.setattr(single_text, "IS_COMPILED", False)
    expected = SingleTexts(tables(families)).find(text)
    assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]


@compiled
def test_known_terms_are_found_at_all():
    assert check(tables(FAMILIES), "my card is lost") > 10
    assert check(tables(("words",)), "card " * 300) == 1


@compiled
def test_tables_that_are_never_fitted():
    words, pairs = tables(("words", "pairs"))
    empty = TermTable("characters3", np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64), 1 << 16)
    for known in ([empty], [words, empty], [words, words], [pairs, words, empty]):
        check(known, "my card is lost")


@compiled
def test_many_terms_with_the_same_first_bits_are_sorted():
    """More of them than are sorted one by one."""
    words = [f"w{k}" for k in range(40_000)]
    _, _, numbers = TextBatch([" ".join(words)[:MAX_TEXT_BYTES]]).occurrences("words")
    near = [
        (number, word) for number, word in zip(numbers.tolist(), words, strict=False) if number >> 58 == 7
    ]
    assert len(near) > 100
    terms = np.array(sorted(number for number, _ in near[::2]), dtype=np.uint64)
    known = TermTable("words", terms, np.full(len(terms), 1 << 17), 1 << 16)
    assert check([known], " ".join(word for _, word in near * 3)) == len(terms)


@compiled
def test_texts_are_pickled_and_copied():
    known = tables(("words", "pairs"))
    texts = SingleTexts(known)
    for other in (pickle.loads(pickle.dumps(texts)), copy.deepcopy(texts)):
        np.testing.assert_array_equal(other.find("my card")[1], texts.find("my card")[1])


GOOD = (bytes(0x10001), bytes(256 * 8))


@compiled
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (b"", GOOD[1], ()),
        (GOOD[0], b"", ()),
        (*GOOD, []),
        (*GOOD, (1,)),
        (*GOOD, ((5, b"", b"", 1),)),
        (*GOOD, ((-1, b"", b"", 1),)),
        (*GOOD, ((0, bytes(8), b"", 1),)),
        (*GOOD, ((0, bytes(7), bytes(7), 1),)),
        (*GOOD, ((0, bytes(8), bytes(8), 1), (0, bytes(8), None, 1))),
        (*GOOD, ((0, b"", b"", 1),) * 100),
    ],
)
def test_wrong_tables_are_errors(arguments):
    with pytest.raises((TypeError, ValueError)):
        single_text.prepare(*arguments)


@compiled
def test_wrong_texts_are_errors():
    prepared = single_text.prepare(*GOOD, ())
    for arguments in [
        (),
        (prepared,),
        (prepared, b"text"),
        (prepared, None),
        (1, "text"),
        (prepared, "text", 1),
    ]:
        with pytest.raises((TypeError, ValueError)):
            single_text.find_terms(*arguments)
    assert single_text.find_terms(prepared, "text") == (b"", b"")


SANITIZED = """
import random, struct
made = random.Random(1)
classes = bytes(made.choices([0, 1, 1, 2], k=0x10001))
counts = struct.pack("256q", *range(1, 257))
def table(n):
    terms = sorted(made.randrange(2**made.choice([8, 40, 64])) for _ in range(n))
    return struct.pack(f"{n}Q", *terms), struct.pack(f"{n}q", *made.choices(range(1, 9999), k=n))
for _ in range(300):
    sizes = made.choices([0, 1, 2, 30, 3000], k=made.randrange(4))
    prepared = module.prepare(classes, counts, tuple((made.randrange(5), *table(n), 7) for n in sizes))
    for _ in range(100):
        points = made.choice([range(128), range(0x3000), range(0x110000)])
        letters = map(chr, made.choices(points, k=made.choice([0, 1, 2, 9, 99, 999])))
        module.find_terms(prepared, "".join(letters))
    module.find_terms(prepared, chr(made.randrange(0x3000)) * 30_000)
large = struct.pack("256q", *([2**62] * 256))
prepared = module.prepare(classes, large, ((0, struct.pack("Q", 1), struct.pack("q", 2**62), 2**62),))
module.find_terms(prepared, "".join(map(chr, range(32, 999))))
"""


@pytest.mark.long
def test_the_address_and_undefined_behaviour_sanitizers_find_nothing(tmp_path):
    run_sanitized(SOURCE, SANITIZED, tmp_path)
