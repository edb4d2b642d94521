"""Evaluations of versions on data sets, and the gates of aliases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from stms_client import alias_calls, calls
from stms_client.aio.connection import Connection
from stms_client.documents import Evaluation, Gate, ListedEvaluation
from stms_client.errors import EvaluationNotSucceeded, NotFound
from stms_client.progress import ProgressBar

_PAUSE = 0.5


class Evaluations(Connection):
    """A version is named as in queries: ``model``, ``model@alias`` or ``model@5``."""

    async def evaluate(
        self,
        version: str,
        dataset_id: str,
        *,
        baseline: str | None = None,
        part: str = "all",
        tolerance: float = 0.01,
        alpha: float = 0.05,
        unknown_classes: str = "drop",
    ) -> Evaluation:
        """Ask for the figures of a version on a labelled data set; `wait_for_evaluation` waits for them.

        Rows that either version was trained on do not count.

        version: model@5, model@alias or model. baseline: a version that it is compared with on the same rows.
        part: of the data set: all, train or test. tolerance: the loss of a share that does not matter. alpha:
        the probability that any verdict of all classes is wrong. unknown_classes: rows of classes that not
        all versions have are left out (drop), rows of none of the classes (keep), or refused (refuse).
        """
        body = {
            "version": version,
            "dataset_id": dataset_id,
            "baseline": baseline,
            "part": part,
            "tolerance": tolerance,
            "alpha": alpha,
            "unknown_classes": unknown_classes,
        }
        call = calls.post("/v1/evaluations", calls.without_none(body), Evaluation, repeatable=False)
        return await self.do(call)

    async def evaluation(self, evaluation_id: str) -> Evaluation:
        """One evaluation: its state, and its figures when it has ended."""
        return await self.do(calls.get(alias_calls.evaluation_path(evaluation_id), Evaluation))

    def evaluations(
        self, *, version: str | None = None, baseline: str | None = None, dataset_id: str | None = None
    ) -> AsyncIterator[ListedEvaluation]:
        """Evaluations, newest first, without the figures of their classes.

        version: only of this version, model@5. baseline: only against this version. dataset_id: only on this
        data set.
        """
        return self._listed(
            "/v1/evaluations", ListedEvaluation, version=version, baseline=baseline, dataset_id=dataset_id
        )

    async def wait_for_evaluation(
        self,
        evaluation_id: str,
        *,
        progress: Callable[[Evaluation], None] | bool | None = None,
    ) -> Evaluation:
        """The evaluation once it has succeeded. Raises EvaluationNotSucceeded if it ends otherwise.

        progress: True for a bar in the terminal or notebook, or a function that is called with the document
        twice a second.
        """
        with ProgressBar() as bar:
            while True:
                found = await self.evaluation(evaluation_id)
                if callable(progress):
                    progress(found)
                elif progress:
                    text = f"{found['version']}: {found['state']}"
                    bar.show(text, found["progress_done"], max(1, found["progress_total"]))
                if found["state"] not in {"queued", "running"}:
                    break
                await asyncio.sleep(_PAUSE)
        if found["state"] != "succeeded":
            raise EvaluationNotSucceeded({**found})
        return found

    async def cancel_evaluation(self, evaluation_id: str) -> Evaluation:
        """Stop an evaluation."""
        return await self.do(calls.act(f"{alias_calls.evaluation_path(evaluation_id)}/cancel", Evaluation))

    async def delete_evaluation(self, evaluation_id: str) -> None:
        """Delete an evaluation that has ended."""
        await self.do(calls.delete(alias_calls.evaluation_path(evaluation_id)))

    async def gate(self, model: str, alias: str) -> Gate:
        """What a version must have passed before an alias is moved to it. Raises NotFound without a gate."""
        return await self.do(calls.get(alias_calls.gate_path(model, alias), Gate))

    async def set_gate(
        self,
        model: str,
        alias: str,
        dataset_id: str,
        *,
        rule: str = "not_worse",
        tolerance: float = 0.01,
        alpha: float = 0.05,
        least_rows: int = 50,
    ) -> Gate:
        """Let an alias move only to versions that were evaluated against its present one, and are not worse.

        It needs a key of an administrator. Raises Conflict when another client changed it at the same time.

        rule: not_worse (every class is proved not worse) or no_class_worse (none is proved worse). tolerance:
        the loss of a share that does not matter. alpha: the probability that any verdict of all classes is
        wrong. least_rows: rows that the evaluation must have used.
        """
        try:
            revision: int | None = (await self.gate(model, alias))["revision"]
        except NotFound:
            revision = None
        body = {
            "rule": rule,
            "dataset_id": dataset_id,
            "tolerance": tolerance,
            "alpha": alpha,
            "least_rows": least_rows,
        }
        return await self.do(alias_calls.set_gate(model, alias, body, revision))

    async def delete_gate(self, model: str, alias: str) -> None:
        """Let an alias move to any version again. It needs a key of an administrator."""
        revision = (await self.gate(model, alias))["revision"]
        await self.do(alias_calls.delete_gate(model, alias, revision))
