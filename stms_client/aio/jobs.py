"""Training jobs: submit, follow, read and draw them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from stms_client import calls, documents, plots
from stms_client.aio.connection import Connection
from stms_client.arrays import ClassName, Rows, class_name, is_array, numbers, rows_body
from stms_client.cards import Facts, Shown
from stms_client.curves import Curve
from stms_client.documents import Dataset, Event, JobCounts, Label, Student, Suspect, Trace
from stms_client.errors import InvalidInput, JobNotSucceeded, StmsError
from stms_client.events import ENDED, EventCursor, EventReader
from stms_client.progress import ProgressBar
from stms_client.results import JobEvent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class AsyncJob(Shown, dict[str, Any]):
    """A training job: the document that the service has sent, and what can be done with the job.

    The methods that draw return figures of matplotlib, which must be installed; axes: draw there instead.
    label: a class. method: of its student; by default the one that answers queries. Raises StmsError where
    the job has no trained student of the class.
    """

    def __init__(self, document: documents.Job, client: Jobs) -> None:
        super().__init__(document)
        self._client = client

    def _facts(self) -> Facts:
        facts = {name: self.get(name) for name in ("id", "model", "state", "version", "dataset_id")}
        progress, error = self.get("progress") or {}, self.get("error") or {}
        done = f"{progress['done']} of {progress['total']}" if progress else None
        return facts | {
            "progress": done,
            "warnings": len(self.get("warnings", ())) or None,
            "error": error.get("message"),
        }

    @property
    def id(self) -> str:
        """The id of the job."""
        return str(self["id"])

    @property
    def state(self) -> str:
        """The state when the document was read, for example ``"running"``."""
        return str(self["state"])

    @property
    def has_ended(self) -> bool:
        """Whether the job had ended when the document was read."""
        return self.state in ENDED

    @property
    def model(self) -> str:
        """The model of which the job publishes a version."""
        return str(self["model"])

    @property
    def version(self) -> int | None:
        """The version that the job has published."""
        number: int | None = self["version"]
        return number

    async def refresh(self) -> Self:
        """Read the document anew."""
        return self._replace(await self._client.job(self.id))

    async def wait(
        self, *, progress: Callable[[JobEvent], None] | bool | None = None, patience: float = 60.0
    ) -> Self:
        """Wait until the job has ended, as `Client.wait_for_job` does. Raises JobNotSucceeded."""
        job = await self._client.wait_for_job(self.id, progress=progress, patience=patience)
        return self._replace(job)

    def follow(self) -> AsyncIterator[JobEvent]:
        """The events of the job until it ends."""
        return self._client.follow_job(self.id)

    async def cancel(self) -> Self:
        """Stop the job."""
        return self._replace(await self._client.cancel_job(self.id))

    async def retry(self) -> Self:
        """Resume the job after it has failed, was cancelled or succeeded in part."""
        return self._replace(await self._client.retry_job(self.id))

    def students(
        self, *, method: str | None = None, sort: str | None = None, label: str | None = None
    ) -> AsyncIterator[Student]:
        """The students of the job, as `Client.students` lists them."""
        return self._client.students(self.id, method=method, sort=sort, label=label)

    async def student(self, label: ClassName, *, method: str | None = None) -> Student:
        """The trained student of one class."""
        name = class_name(label)
        async for row in self.students(method=method, label=name):
            if row["label"] == name:
                return row
        kind = "student" if method is None else f"student {method!r}"
        raise StmsError(f"Job {self.id} has no trained {kind} of class {name!r}.")

    async def curve(self, label: ClassName, *, method: str | None = None) -> Curve:
        """What the student would answer at other thresholds. method: ``"teacher"`` for the teacher."""
        student = await self.student(label, method=None if method == "teacher" else method)
        named = method or student["method"]
        document = await self._client.student_curve(self.id, student["class_index"], named)
        threshold = student["threshold"] if named == student["method"] else None
        return Curve.of(document, student["label"], threshold)

    async def trace(self, label: ClassName, *, method: str | None = None) -> Trace:
        """The points of the search for the student's hyper-parameters or size."""
        student = await self.student(label, method=method)
        return await self._client.student_trace(self.id, student["class_index"], student["method"])

    async def plot_roc(
        self, label: ClassName, *, method: str | None = None, axes: Axes | None = None
    ) -> Figure:
        """The ROC curve of a class on the test part, with the threshold in use."""
        return plots.roc(await self.curve(label, method=method), axes)

    async def plot_precision_recall(
        self, label: ClassName, *, method: str | None = None, axes: Axes | None = None
    ) -> Figure:
        """Precision against recall of a class on the test part, with the threshold in use."""
        return plots.precision_recall(await self.curve(label, method=method), axes)

    async def plot_reliability(
        self, label: ClassName, *, method: str | None = None, axes: Axes | None = None
    ) -> Figure:
        """Predicted probabilities of a calibrated student against observed shares, on the test part."""
        return plots.reliability(await self.student(label, method=method), axes)

    async def plot_classes(
        self,
        metric: str = "f1",
        *,
        method: str | None = None,
        most: int = 30,
        axes: Axes | None = None,
    ) -> Figure:
        """A metric of the classes in which it is lowest. most: number of classes."""
        rows: list[Student] = []
        async for row in self.students(method=method, sort=metric):
            if len(rows) == most:
                break
            rows.append(row)
        return plots.classes(rows, metric, axes)

    def _replace(self, document: Mapping[str, Any]) -> Self:
        self.clear()
        self.update(document)
        return self


class Jobs(Connection):
    """Submit, read, follow, cancel, retry and delete training jobs."""

    async def submit_job(
        self,
        dataset_id: str,
        model: str,
        hyperparameters: Mapping[str, Any] | None = None,
        *,
        priority: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """Train a teacher and its students, and publish them as a version of ``model``.

        priority: low, normal or, for operators, high. idempotency_key: repeats with the same key are one job.
        """
        call = calls.submit(dataset_id, model, hyperparameters, idempotency_key, priority)
        return AsyncJob(await self.do(call), self)

    async def add_class(
        self,
        model: str,
        name: ClassName,
        rows: Rows | None = None,
        *,
        texts: Sequence[str] | None = None,
        dataset_id: str | None = None,
        base: int | str = "latest",
        max_false_positive_rate: float = 0.01,
        confidence: float | None = None,
        alias: str | None = None,
    ) -> AsyncJob:
        """Add a class to ``base`` from 5 to 10 000 examples. The job publishes a version with all students of
        the earlier one as they are, and one of the new class; what is known of it is in its provenance.

        rows: examples as queries take them, or texts, or dataset_id: a data set all rows of which are
        examples. max_false_positive_rate: budget of the new student. confidence: that it keeps the budget;
        without it, it does so on average. alias: moved to the new version.
        """
        if (rows is None) + (texts is None) + (dataset_id is None) != 2:
            raise InvalidInput("Examples are rows, texts or a data set: give one of them.")
        examples: dict[str, Any] = {"texts": texts and list(texts), "dataset_id": dataset_id}
        if rows is not None:
            examples |= {"rows": numbers(rows, 2).tolist()} if is_array(rows) else rows_body(rows)
        body = {
            "name": class_name(name),
            "base": str(base),
            **{form: given for form, given in examples.items() if given is not None},
            "max_false_positive_rate": max_false_positive_rate,
            "confidence": confidence,
            "alias": alias,
        }
        path = f"{calls.model_path(model)}/classes"
        return AsyncJob(await self.do(calls.post(path, body, documents.Job, repeatable=False)), self)

    async def merge_classes(
        self,
        model: str,
        name: str,
        classes: Sequence[str],
        *,
        base: int | str = "latest",
        alias: str | None = None,
    ) -> AsyncJob:
        """Make one class of some: its student is trained with the rows of all of them; the others stay.

        base: number of the version, or an alias. alias: moved to the new version.
        """
        body = calls.without_none({"name": name, "base": str(base), "alias": alias})
        body["classes"] = list(classes)
        path = f"{calls.model_path(model)}/classes:merge"
        return AsyncJob(await self.do(calls.post(path, body, documents.Job, repeatable=False)), self)

    async def retrain(
        self,
        model: str,
        dataset_id: str | None = None,
        *,
        base: int | str = "latest",
        hyperparameters: Mapping[str, Any] | None = None,
        alias: str | None = None,
        classes: str | Sequence[str] = "all",
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """Train the version ``base`` again, with the specification of the job that trained it.

        dataset_id: what to train on; by default the data set of that job. hyperparameters: those that differ.
        alias: moved to the new version. classes: ``"changed"``, or names, for those whose students alone are
        trained; the others stay as they are. idempotency_key: repeats with the same key are one job. What is
        not repeated of a version with other thresholds or classes is in the warnings of the job.
        """
        call = calls.retrain(model, str(base), dataset_id, hyperparameters, alias, idempotency_key, classes)
        return AsyncJob(await self.do(call), self)

    async def jobs(
        self,
        state: str | None = None,
        *,
        model: str | None = None,
        created_by: str | None = None,
        since: float | None = None,
    ) -> AsyncIterator[AsyncJob]:
        """All jobs, newest first.

        state: only jobs in this state, such as running. model: only jobs of this model. created_by: only jobs
        of this API key, by its id. since: earliest submission, in Unix time.
        """
        filters = {"status": state, "model": model, "created_by": created_by, "since": since}
        async for document in self._listed("/v1/training-jobs", documents.Job, **filters):
            yield AsyncJob(document, self)

    async def job_counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        found = await self.do(calls.get("/v1/training-jobs/counts", JobCounts))
        return found["counts"]

    async def job(self, job_id: str) -> AsyncJob:
        """The current state of a job."""
        return AsyncJob(await self.do(calls.get(calls.job_path(job_id), documents.Job)), self)

    def job_events(self, job_id: str) -> AsyncIterator[Event]:
        """The events of a job so far, oldest first."""
        return self._listed(f"{calls.job_path(job_id)}/events", Event)

    def students(
        self,
        job_id: str,
        *,
        method: str | None = None,
        sort: str | None = None,
        label: str | None = None,
    ) -> AsyncIterator[Student]:
        """The students of a job, one entry for each class and method.

        sort: for example "-f1" for the best first; label: part of the label. With one of them, the trained
        students of one method, by default the served one.
        """
        path = f"{calls.job_path(job_id)}/students"
        return self._listed(path, Student, method=method, sort=sort, label=label)

    async def student_curve(self, job_id: str, class_index: int, method: str) -> documents.Curve:
        """The ROC curve of a student on the test part: thresholds, and counts at each."""
        path = f"{calls.student_path(job_id, class_index, method)}/curve"
        return await self.do(calls.get(path, documents.Curve))

    async def student_trace(self, job_id: str, class_index: int, method: str) -> Trace:
        """The search for a student's hyper-parameters or size, point by point."""
        return await self.do(calls.get(f"{calls.student_path(job_id, class_index, method)}/trace", Trace))

    def job_labels(
        self, job_id: str, *, order: str | None = None, label: ClassName | None = None
    ) -> AsyncIterator[Label]:
        """Row, label and certainty of the rows of a job with a labelling.

        order: "certainty" for the least certain first. label: only rows that have it.
        """
        name = None if label is None else class_name(label)
        return self._listed(f"{calls.job_path(job_id)}/labels", Label, order=order, label=name)

    async def correct_labels(
        self,
        job_id: str,
        corrections: Mapping[int, ClassName | None] | None = None,
        *,
        rename: Mapping[str, ClassName] | Mapping[int, ClassName] | None = None,
        keep: str = "all",
        name: str | None = None,
    ) -> Dataset:
        """The rows of a job with its labels, corrected, as a data set.

        corrections: labels by row; None takes a label away. rename: new names of the job's classes.
        keep: "all" labels, or only those "given" by the data set and the corrections.
        """
        body = {
            "corrections": [
                {"row": int(row), "label": None if label is None else class_name(label)}
                for row, label in (corrections or {}).items()
            ],
            "rename": {class_name(old): class_name(new) for old, new in (rename or {}).items()},
            "keep": keep,
            "name": name,
        }
        return await self.do(calls.post(f"{calls.job_path(job_id)}/labels", body, Dataset))

    def job_suspects(self, job_id: str, *, label: ClassName | None = None) -> AsyncIterator[Suspect]:
        """Rows of a job's data set whose labels are probably wrong, the most suspect first.

        label: only rows that have it.
        """
        name = None if label is None else class_name(label)
        return self._listed(f"{calls.job_path(job_id)}/suspects", Suspect, **{"class": name})

    async def correct_suspects(
        self,
        job_id: str,
        corrections: Mapping[int, ClassName],
        *,
        keep: Iterable[int] = (),
        name: str | None = None,
    ) -> Dataset:
        """The rows of a job with corrected labels, as a data set.

        corrections: labels by row. keep: rows whose labels are right; jobs on the new data set do not name
        them again.
        """
        said: list[dict[str, Any]] = [
            {"row": int(row), "label": class_name(label)} for row, label in corrections.items()
        ]
        said += [{"row": int(row), "keep": True} for row in keep]
        body = {"corrections": said, "name": name}
        return await self.do(calls.post(f"{calls.job_path(job_id)}/suspects", body, Dataset))

    async def cancel_job(self, job_id: str) -> AsyncJob:
        """Stop a job."""
        return AsyncJob(await self.do(calls.act(f"{calls.job_path(job_id)}/cancel", documents.Job)), self)

    async def retry_job(self, job_id: str) -> AsyncJob:
        """Resume a failed, cancelled or partly successful job."""
        return AsyncJob(await self.do(calls.act(f"{calls.job_path(job_id)}/retry", documents.Job)), self)

    async def delete_job(self, job_id: str) -> None:
        """Delete an ended job that published no version."""
        await self.do(calls.delete(calls.job_path(job_id)))

    async def follow_job(
        self, job_id: str, *, patience: float = 60.0, pause: float = 1.0
    ) -> AsyncIterator[JobEvent]:
        """The events of a job until it ends, over as many connections as necessary.

        patience: seconds without the server before its error is raised. pause: seconds between two attempts.
        """
        cursor = EventCursor(patience)
        path = calls.job_path(job_id)
        while True:
            reader = EventReader()
            try:
                async with self.streaming(f"{path}/events", cursor.headers) as response:
                    async for line in response.aiter_lines():
                        event = reader.feed(line)
                        if event is not None:
                            cursor.advance(event)
                            yield event
                job = await self.once(calls.get(path, documents.Job))
                if job["state"] in ENDED:
                    return
            except StmsError as error:
                cursor.connection_lost(error)
            await asyncio.sleep(pause)

    async def wait_for_job(
        self,
        job_id: str,
        *,
        progress: Callable[[JobEvent], None] | bool | None = None,
        patience: float = 60.0,
    ) -> AsyncJob:
        """The job once it has ended. Raises JobNotSucceeded.

        progress: True for a bar in the terminal or notebook, or a function that is called with every event.
        patience: seconds without the server before its error is raised.
        """
        with ProgressBar() as bar:
            async for event in self.follow_job(job_id, patience=patience):
                if callable(progress):
                    progress(event)
                elif progress and bar.is_due():
                    bar.show_job(await self.job(job_id))
            job = await self.job(job_id)
            if progress and not callable(progress):
                bar.show_job(job)
        if job.state != "succeeded":
            raise JobNotSucceeded(job)
        return job
