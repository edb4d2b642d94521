"""Computes what each column of a row adds to a student's score, compared with a typical row.

The effects are exact if a score is a sum over the columns of a row, also on the deciding face of a polytope:

    effect of c = Σ_{j in c} coef_j (x_j − mean_j)        base = the score at the means, without any terms

Base and effects then add up to the score, up to rounding. So do the changes of the expected value along the
paths of a row through trees (``tree_effects``), whose base is the mean of the training rows.

For a kernel, the row is compared with the same row in which column c has its usual value. These effects need
not add up. Terms of texts beside a kernel have exact effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from core.data.validation import QUIET, out_of_range
from core.packed.encoder import Encoder
from core.packed.forms import Linear, PolytopeForm
from core.packed.maps import BesideTerms, Floats, LinearBasis, PackedMap
from core.packed.record_rows import EncodedRecord
from core.packed.student import PackedStudent
from core.packed.term_table import TermTable
from core.packed.terms import TextBatch
from core.packed.tree_effects import ScoreEffects
from core.packed.trees import TreesBasis

_BLOCK: Final = 1 << 20
"""Numbers in the rows with replaced columns that are scored together."""

_OF_NUMBER: Final = 100
_OF_REFERENCE: Final = 64
_OF_COLUMN: Final = 8_000
_OF_CALLS: Final = 60_000
"""Times in multiply-adds: reading a number of a list, looking up a node of trees, replacing a column by
its usual value, and of a few NumPy calls."""

Place: TypeAlias = slice | NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """The row with which rows are compared, and the columns of its table.

    means, usual: means and usual values of the dense columns, (k,). dense, terms: the starts of the dense
    columns and of the terms of each of g columns of the table, followed by their numbers, (g + 1,).
    """

    means: Floats
    usual: Floats
    dense: NDArray[np.int64]
    terms: NDArray[np.int64]

    @classmethod
    def of_numbers(cls, means: Floats) -> Baseline:
        """The baseline of rows that are numbers."""
        places = np.arange(len(means) + 1)
        return cls(means, means, places, np.zeros_like(places))

    @classmethod
    def of_encoder(cls, encoder: Encoder) -> Baseline:
        """The baseline of the rows of an encoder."""
        dense = np.cumsum([0, *(column.width for column in encoder.columns)])
        terms = np.cumsum([0, *(sum(map(len, column.tables)) for column in encoder.columns)])
        usual = [
            column.usual(encoder.means[start:stop])
            for column, start, stop in zip(encoder.columns, dense, dense[1:], strict=False)
        ]
        return cls(encoder.means, np.array([number for own in usual for number in own]), dense, terms)

    @property
    def columns(self) -> int:
        """g, the number of columns of the table."""
        return len(self.dense) - 1

    def sums(self, values: Floats) -> Floats:
        """Sums (g,) of values (k,) over the dense columns of each table column."""
        owners = np.repeat(np.arange(self.columns), np.diff(self.dense))
        sums: Floats = np.bincount(owners, values, self.columns).astype(np.float64, copy=False)
        return sums

    def places(self, *, whole: bool) -> list[Place]:
        """Positions of each column in the dense columns or, if ``whole``, in these and the terms."""
        if not whole:
            return [slice(start, stop) for start, stop in zip(self.dense, self.dense[1:], strict=False)]
        k = self.dense[-1]
        bounds = zip(self.dense, self.dense[1:], self.terms + k, self.terms[1:] + k, strict=False)
        return [np.r_[start:stop, first:last] for start, stop, first, last in bounds]


class Contributions(NamedTuple):
    """base: score of the baseline. columns: effect of each column of the table, (g,). terms: effect of each
    stored term, (m,); None if only whole texts are compared. is_exact: whether base and effects add up.
    """

    base: float
    columns: Floats
    terms: Floats | None
    is_exact: bool


def explainer(student: PackedStudent, baseline: Baseline) -> Callable[[EncodedRecord], Contributions]:
    """A function from a row to its contributions; values shared by all rows are computed once.

    One thread must use it alone. It raises InvalidProblem if numbers exceed float64.
    """
    if isinstance(student.map, TreesBasis) and _is_sum(student):
        effects = ScoreEffects(student)
        return lambda record: _with_gaps(
            student, record, _of_trees(effects, student.map.n_columns, record, baseline)
        )
    return lambda record: _with_gaps(student, record, _of_other_maps(student, record, baseline))


def _with_gaps(student: PackedStudent, record: EncodedRecord, found: Contributions) -> Contributions:
    """The contributions to the corrected score of a record with gaps; effects are scaled as the score is."""
    if student.gaps is None or not record.filled:
        return found
    factor = 1.0 + record.filled * student.gaps[0]
    terms = None if found.terms is None else found.terms * factor
    base = student.with_gaps(found.base, record.filled)
    return Contributions(base, found.columns * factor, terms, found.is_exact)


def explanation_work(student: PackedStudent, baseline: Baseline, rows: int) -> int:
    """The work of `explainer` for this number of rows, in multiply-adds."""
    of_rows = rows * (_OF_NUMBER * len(baseline.means) + 3 * student.map.n_columns + _OF_CALLS)
    packed, form, columns = student.map, student.form, baseline.columns
    if isinstance(packed, TreesBasis) and _is_sum(student):
        # Every level takes a few calls of NumPy, however few nodes it has.
        of_levels = _OF_REFERENCE * (len(packed.roots) + len(packed.test)) + _OF_CALLS * packed.depth
        of_face = packed.values.size + of_levels
        of_choice = 0 if form.functions == 1 else packed.work + form.work
        of_row = of_choice + _OF_REFERENCE * packed.steps + _OF_CALLS * packed.depth
        return of_rows + min(rows, form.functions) * of_face + rows * of_row
    of_dense = _of_dense(student)
    if of_dense is None or not _is_sum(student):
        compared = packed.work + form.work + 2 * packed.n_columns + _OF_COLUMN
        return of_rows + rows * (columns + 2) * compared
    if isinstance(of_dense, LinearBasis):
        return of_rows + rows * form.work
    compared = of_dense.work + of_dense.n_basis + 2 * of_dense.n_columns + _OF_COLUMN
    return of_rows + rows * (form.work + (columns + 2) * compared)


def _is_sum(student: PackedStudent) -> bool:
    """Whether a score is a linear function of basis values, or the least of several such functions."""
    return student.form.linear is not None or isinstance(student.form, PolytopeForm)


@QUIET
def _of_other_maps(student: PackedStudent, record: EncodedRecord, baseline: Baseline) -> Contributions:
    dense = np.array(record.dense, dtype=np.float64)
    of_dense = _of_dense(student)
    linear = None if of_dense is None else _deciding(student, of_dense.row(dense), record)
    if of_dense is None or linear is None:
        return _of_whole_rows(student, dense, record, baseline)
    coef, intercept = linear
    p = len(dense) if isinstance(of_dense, LinearBasis) else of_dense.n_basis
    of_terms = coef[p:].take(record.columns) * record.values
    owners = np.searchsorted(baseline.terms, record.columns, side="right") - 1
    columns: Floats = np.bincount(owners, of_terms, baseline.columns).astype(np.float64, copy=False)
    if isinstance(of_dense, LinearBasis):
        products = coef[:p] * (dense - baseline.means)
        columns = columns + baseline.sums(products)
        base = float(coef[:p].dot(baseline.means)) + intercept
        return _checked(base, columns, of_terms, is_exact=True)
    blocks = _replaced(dense, baseline.usual, baseline.places(whole=False))
    scores = np.concatenate([of_dense.block(rows) @ coef[:p] + intercept for rows in blocks])
    return _checked(float(scores[-1]), columns + scores[0] - scores[1:-1], of_terms, is_exact=False)


@QUIET
def _of_trees(
    score_effects: ScoreEffects, n_columns: int, record: EncodedRecord, baseline: Baseline
) -> Contributions:
    """Exact sums along the paths. A text also has effects of terms that it lacks."""
    k = len(record.dense)
    row = np.zeros(n_columns)
    row[:k], row[record.columns + k] = record.dense, record.values
    base, effects = score_effects.of(row)
    of_terms = effects[k:]
    columns = baseline.sums(effects[:k])
    if len(of_terms):
        owners = np.repeat(np.arange(baseline.columns), np.diff(baseline.terms))
        columns += np.bincount(owners, of_terms, baseline.columns)
    return _checked(base, columns, of_terms.take(record.columns) if len(of_terms) else None, is_exact=True)


def _of_dense(student: PackedStudent) -> PackedMap | None:
    """The map of the dense columns beside terms; None for other maps."""
    packed = student.map
    if isinstance(packed, BesideTerms):
        return packed.of_dense
    return packed if isinstance(packed, LinearBasis) else None


def _deciding(student: PackedStudent, basis: Floats, record: EncodedRecord) -> Linear | None:
    """The linear function of basis values that gives the row's score; None for other forms."""
    form = student.form
    if form.linear is not None:
        return form.linear
    if not isinstance(form, PolytopeForm):
        return None
    p = len(basis)
    values = form.coef[:, :p].dot(basis) + form.intercept
    values += form.coef[:, p:].take(record.columns, axis=1).dot(record.values)
    piece = int(values.argmin())
    return form.coef[piece], float(form.intercept[piece])


def _of_whole_rows(
    student: PackedStudent, dense: Floats, record: EncodedRecord, baseline: Baseline
) -> Contributions:
    k = len(dense)
    row, usual = np.zeros(student.map.n_columns), np.zeros(student.map.n_columns)
    row[:k], usual[:k] = dense, baseline.usual
    row[record.columns + k] = record.values
    blocks = _replaced(row, usual, baseline.places(whole=True))
    scores = np.concatenate([*map(student.scores, blocks)])
    return _checked(float(scores[-1]), scores[0] - scores[1:-1], None, is_exact=False)


def _replaced(row: Floats, usual: Floats, places: Sequence[Place]) -> Iterator[Floats]:
    """Yields in blocks: the row, the row with each position replaced by its usual value, the usual row."""
    step = max(1, _BLOCK // len(row))
    nowhere, everywhere = slice(0), slice(None)
    all_places = [nowhere, *places, everywhere]
    for first in range(0, len(all_places), step):
        some = all_places[first : first + step]
        rows = np.tile(row, (len(some), 1))
        for changed, place in zip(rows, some, strict=True):
            changed[place] = usual[place]
        yield rows


def _checked(base: float, columns: Floats, terms: Floats | None, *, is_exact: bool) -> Contributions:
    if not (isfinite(base) and np.isfinite(columns).all()):
        raise out_of_range("x")
    return Contributions(base, columns, terms, is_exact)


def effects_of_words(
    tables: Sequence[TermTable], text: str, columns: NDArray[np.int64], effects: Floats
) -> dict[str, float]:
    """The effect of each different word of a text on a score; the words of a term share its effect.

    tables: the known terms of the column, by families. columns, effects: of the text's terms, which are
    numbered from 0 over all families, (m,). The two words of a pair share its effect, the effect of a run of
    characters belongs to the word around it, and the occurrences of a term in the text have equal shares.
    """
    batch = TextBatch([text])
    starts, stops = batch.pieces
    # Changes from each piece to the next.
    steps = np.zeros(len(starts) + 1)
    of_terms = np.zeros(sum(map(len, tables)))
    of_terms[columns] = effects
    first = 0
    for table in tables:
        own = of_terms[first : first + len(table)]
        first += len(table)
        begins, ends, terms = batch.occurrences(table.family)
        places = np.searchsorted(table.terms, terms)
        is_known = places < len(table)
        is_known[is_known] = table.terms[places[is_known]] == terms[is_known]
        begins, ends, places = begins[is_known], ends[is_known], places[is_known]
        low = np.searchsorted(stops, begins, side="right")
        high = np.searchsorted(starts, ends, side="left")
        times = np.bincount(places, minlength=len(table))
        shares = own[places] / (times[places] * (high - low))
        np.add.at(steps, low, shares)
        np.add.at(steps, high, -shares)
    words: dict[str, float] = {}
    for start, stop, effect in zip(starts, stops, np.cumsum(steps).tolist(), strict=False):
        word = batch.spelled(start, stop)
        words[word] = words.get(word, 0.0) + effect
    return words
