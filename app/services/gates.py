"""Use cases of gates: conditions that a version must have passed before an alias is moved to it.

Every move of an alias calls `refusal_of`: moves by people in `app.services.models.point_alias`, moves by jobs
and imports in `app.services.models.release`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.domain.entities import Json
from app.domain.errors import Conflict, InputFault, PreconditionRequired
from app.domain.evaluation import Gate, ListedEvaluation, Rule
from app.store.repositories.models import Models
from app.store.unit_of_work import Store, UnitOfWork

GATE: Final = "gate"
"""The reason of an alias that was not moved."""
GATE_FAILED: Final = "gate_failed"
GATE_NOT_PASSED: Final = "gate_not_passed"
_MOST_FAULTS: Final = 20


@dataclass(frozen=True, slots=True)
class GateRefusal:
    """Why a gate refuses a move of its alias. evaluation: the failed one; None if no evaluation counts."""

    gate: Gate
    version: int
    present: int
    evaluation: ListedEvaluation | None = None
    faults: Sequence[InputFault] = ()

    @property
    def code(self) -> str:
        """`GATE_FAILED` or `GATE_NOT_PASSED`."""
        return GATE_NOT_PASSED if self.evaluation is None else GATE_FAILED

    @property
    def message(self) -> str:
        """What is missing, and what to do."""
        gate = self.gate
        where = f"alias {gate.alias!r} of model {gate.model!r}"
        if self.evaluation is None:
            return (
                f"The gate of {where} lets version {self.version} take the place of version {self.present}"
                f" after an evaluation on data set {gate.dataset_id} with at least {gate.least_rows} rows,"
                f" and there is none: stms evaluate {gate.model}@{self.version} --dataset {gate.dataset_id}"
                f" --baseline {gate.model}@{self.present} --tolerance {gate.tolerance:g}"
                f" --alpha {gate.alpha:g}."
            )
        wanted = "every class not worse" if gate.rule == "not_worse" else "no class worse"
        return (
            f"The gate of {where} wants {wanted} than version {self.present} gives it; by evaluation"
            f" {self.evaluation.id} version {self.version} is {self.evaluation.verdict}."
        )

    def as_error(self) -> Conflict:
        """The error of a person's move; its faults name the classes."""
        return Conflict(self.message, code=self.code, faults=self.faults)

    def noted(self) -> Json:
        """As records of jobs and of the audit log have it."""
        found = None if self.evaluation is None else self.evaluation.id
        return {"code": self.code, "evaluation": found, "message": self.message}


def refusal_of(uow: UnitOfWork, registry: Models, model: str, alias: str, version: int) -> GateRefusal | None:
    """Why the gate of an alias refuses a version; None if it has no gate, or if the version passes.

    registry: of the model's tenant. A version that the alias had before passes, so rollbacks are never
    refused.
    """
    tenant = registry.tenant
    gate = uow.gates.of_tenant(tenant).find(model, alias)
    if gate is None or registry.has_pointed(model, alias, version):
        return None
    present = registry.alias(model, alias).version
    evaluations = uow.evaluations.of_tenant(tenant)
    for found in evaluations.of_gate(f"{model}@{version}", f"{model}@{present}", gate.dataset_id, gate.alpha):
        if found.tolerance > gate.tolerance or (found.rows_used or 0) < gate.least_rows:
            continue
        if _passes(gate, found):
            return None
        if found.tolerance < gate.tolerance:
            # With the tolerance of the gate it might pass.
            continue
        classes = evaluations.get(found.id).classes
        return GateRefusal(gate, version, present, found, _faults(gate, classes))
    return GateRefusal(gate, version, present)


def get_gate(store: Store, model: str, alias: str) -> Gate:
    """The gate of an alias. Raises NotFound, also for an alias that does not exist."""
    with store.read() as uow:
        uow.models.alias(model, alias)
        return uow.gates.get(model, alias)


def gates_of(store: Store, model: str) -> dict[str, Gate]:
    """The gates of the aliases of a model, by alias."""
    with store.read() as uow:
        return uow.gates.of_model(model)


def set_gate(
    store: Store,
    model: str,
    alias: str,
    expected_revision: int | None,
    *,
    rule: Rule,
    dataset_id: str,
    tolerance: float,
    alpha: float,
    least_rows: int,
) -> Gate:
    """Set the gate of an alias, or change it.

    expected_revision: that the caller read; 0 for a new gate; None for either, which an existing gate does
    not allow. Raises NotFound, PreconditionFailed and PreconditionRequired.
    """
    with store.begin() as uow:
        uow.registry.lock()
        uow.models.alias(model, alias)
        # A gate stays with the revision that is the newest when it is set.
        dataset_id = uow.datasets.get(dataset_id).id
        if expected_revision is None and uow.gates.find(model, alias) is not None:
            raise _required(model, alias)
        gate = Gate(
            model=model,
            alias=alias,
            rule=rule,
            dataset_id=dataset_id,
            tolerance=tolerance,
            alpha=alpha,
            least_rows=least_rows,
            revision=0,
            updated_at=time.time(),
            tenant=store.tenant,
        )
        stored = uow.gates.set(gate, expected_revision=expected_revision or 0)
        uow.audit.append("gate.set", f"{model}@{alias}", details=_shown(stored))
        return stored


def delete_gate(store: Store, model: str, alias: str, expected_revision: int | None) -> None:
    """Delete the gate of an alias. Raises NotFound, PreconditionFailed and PreconditionRequired."""
    if expected_revision is None:
        raise _required(model, alias)
    with store.begin() as uow:
        uow.registry.lock()
        uow.models.alias(model, alias)
        gate = uow.gates.get(model, alias)
        uow.gates.delete(model, alias, expected_revision=expected_revision)
        uow.audit.append("gate.delete", f"{model}@{alias}", details=_shown(gate))


def _required(model: str, alias: str) -> PreconditionRequired:
    text = f"Alias {alias!r} of {model!r} has a gate: the revision you read is required."
    return PreconditionRequired(text, code="if_match_required")


def _passes(gate: Gate, evaluation: ListedEvaluation) -> bool:
    if gate.rule == "no_class_worse":
        return evaluation.verdict in {"not_worse", "undecided"}
    return evaluation.verdict == "not_worse"


def _faults(gate: Gate, classes: Sequence[Json]) -> list[InputFault]:
    """The classes by which an evaluation failed."""
    faults = []
    for entry in classes:
        comparison = entry["comparison"]
        if comparison["verdict"] == "not_worse":
            continue
        if gate.rule == "no_class_worse" and comparison["verdict"] != "worse":
            continue
        message = f"Class {entry['class']!r:.100} is {comparison['verdict']}: {_sides(comparison)}."
        faults.append(InputFault(f"classes.{entry['class']}"[:200], comparison["verdict"], message))
    return faults[:_MOST_FAULTS]


def _sides(comparison: Json) -> str:
    names = {"recall": "of its rows", "false_positives": "of all others"}
    return ", ".join(
        f"{names[side]} only the present version has {comparison[side]['only_baseline_right']} right, only"
        f" the new one {comparison[side]['only_candidate_right']}"
        for side in names
        if comparison[side]["verdict"] != "not_worse"
    )


def _shown(gate: Gate) -> Json:
    return {
        "rule": gate.rule,
        "dataset_id": gate.dataset_id,
        "tolerance": gate.tolerance,
        "alpha": gate.alpha,
        "least_rows": gate.least_rows,
    }
