"""Calibrated probabilities of the open grid's gSVM: fitted on held-out folds, measured on the test part.

The protocol stores the chosen point of a student, not its held-out scores. These are computed again here at
that point alone, on the same folds and with the same teachers; the student itself is that of the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.model_selection.calibration import fit_calibration, reliability
from core.model_selection.held_out import held_out_scores
from core.model_selection.metrics import binary_metrics
from core.model_selection.options import CalibrationKind
from lab.experiments.plans import GridName
from lab.experiments.protocol import Protocol, student_name
from lab.experiments.store import Record, Run, Store, Work, body, recipe_of, short

GRID: GridName = "open"
KINDS: tuple[CalibrationKind, ...] = ("sigmoid", "isotonic")

ISOTONIC_NEEDS = 200
"""Training rows of the class, and of the rest, from which an isotonic calibration is fitted."""

NAME = "probabilities"

_SCORES = ("brier", "base_brier", "error")


class Probabilities(Work):
    """One record for a data set.

    ``kinds``: by calibration the classes that have it, the means over them of the Brier score, of that of the
    class's share (``base_brier``) and of the calibration ``error``; ``bins`` pooled over these classes, and
    their error. ``other_students``: classes whose student, trained again, has another F on the test part.
    """

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol.run, protocol.store, recipe_of(NAME, protocol.recipe))
        self._protocol = protocol

    def names(self) -> list[str]:
        return [NAME]

    def make(self, name: str) -> Record:  # noqa: ARG002
        classes = self._protocol.preparation.classes
        unchanged, tested = zip(*map(self._of_class, range(len(classes))), strict=True)
        by_kind = {kind: [one for one in tested if kind in one] for kind in KINDS}
        return {
            "protocol": self._protocol.recipe,
            "n_classes": len(classes),
            "other_students": [name for name, same in zip(classes, unchanged, strict=True) if not same],
            "kinds": {kind: _calibrated(kind, own) for kind, own in by_kind.items() if own},
        }

    def _of_class(self, code: int) -> tuple[bool, Record]:
        """Whether the student has the F of the protocol's; truth and probabilities of the test part."""
        protocol, student = self._protocol, self._protocol.needed(student_name(code, "gsvm"))
        spec, threshold = protocol.spec("gsvm", student["chosen"]), student["chosen"]["threshold"]
        held_out = held_out_scores(protocol.folds, code, spec, protocol.core_run)
        score = protocol.train(code, spec)[1]
        positive, truth = protocol.preparation.labels == code, protocol.evaluator.labels == code
        positives = int(positive.sum())
        tested = {"label": protocol.preparation.classes[code], "positives": positives, "truth": truth}
        enough = min(positives, len(positive) - positives) >= ISOTONIC_NEEDS
        for kind in KINDS if enough else KINDS[:1]:
            tested[kind] = fit_calibration(positive, held_out, kind).probabilities(score)
        return binary_metrics(truth, score >= threshold, score).f1 == student["metrics"]["f1"], tested


def _calibrated(kind: str, tested: Sequence[Record]) -> Record:
    """Scores of each class, their means, and the bins of all classes together."""
    each = [reliability(one["truth"], one[kind]).as_dict() for one in tested]
    classes = [
        {"label": one["label"], "positives": one["positives"], **{name: scores[name] for name in _SCORES}}
        for one, scores in zip(tested, each, strict=True)
    ]
    pooled = reliability(*(np.concatenate([one[name] for one in tested]) for name in ("truth", kind)))
    return {
        "kind": kind,
        **{name: float(np.mean([one[name] for one in each])) for name in _SCORES},
        "pooled_error": pooled.error,
        "classes": classes,
        "bins": pooled.as_dict()["bins"],
    }


def summarise_probabilities(store: Store, data_set: str) -> Record | None:
    """The record of a data set, if it was made from the protocol's present run."""
    run = Run(data_set, GRID, 0)
    setting, record = store.read(run.key("setting")), store.read(run.key(NAME))
    if setting is None or record is None or record["protocol"] != setting["recipe"]:
        return None
    summary: Record = short(body(record))
    return summary
