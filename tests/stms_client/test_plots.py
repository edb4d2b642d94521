"""A job of the client, and the figures of its classes."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from stms_client import AsyncClient, Client, Curve, MissingPackage, StmsError, plots

JOB = "/v1/training-jobs/job_1"
BINS = [{"probability": 0.1, "observed": 0.2, "count": 5}, {"probability": 0.9, "observed": 1.0, "count": 20}]
ROWS = [
    {"class_index": 7, "label": "AB", "method": "gsvm", "threshold": 0.5, "metrics": {"f1": 0.25}},
    {
        "class_index": 3,
        "label": "A",
        "method": "gsvm",
        "threshold": 0.5,
        "metrics": {"f1": 0.75, "reliability": BINS},
    },
    {"class_index": 4, "label": "$x_1$", "method": "gsvm", "threshold": 0.5, "metrics": {"f1": None}},
]
POINTS = {
    "method": "gsvm",
    "positives": 4,
    "negatives": 10,
    "thresholds": [2.0, 0.5, -1.0],
    "tp": [1, 3, 4],
    "fp": [0, 1, 6],
}
CURVE = Curve.of(POINTS, "A", 0.5)


@pytest.fixture
def job_server(written):
    written.on("GET", JOB, {"id": "job_1", "state": "succeeded", "model": "letters", "version": 2})
    written.on("GET", f"{JOB}/students", {"data": ROWS})
    for method in ("gsvm", "teacher"):
        written.on("GET", f"{JOB}/students/3/{method}/curve", POINTS | {"method": method})
    written.on("GET", f"{JOB}/students/3/gsvm/trace", {"points": []})
    return written


def test_a_job_has_curves_and_figures_of_its_classes(job_server):
    with Client(job_server.address, "key") as client:
        job = client.job("job_1")
        assert (job.id, job.state, job.has_ended, job.model, job.version) == (
            "job_1",
            "succeeded",
            True,
            "letters",
            2,
        )
        assert job.curve("A") == CURVE
        assert job.curve("A", method="teacher").threshold is None
        assert job.trace("A") == {"points": []}
        for figure in (job.plot_roc("A"), job.plot_precision_recall("A"), job.plot_reliability("A")):
            assert isinstance(figure, Figure)
        assert figure._repr_png_().startswith(b"\x89PNG")
        figure = job.plot_classes(most=2)
        assert [bar.get_width() for bar in figure.axes[0].patches] == [0.25, 0.75]
        with pytest.raises(StmsError, match="no trained student of class 'B'"):
            job.plot_roc("B")
        with pytest.raises(StmsError, match="no measured probabilities"):
            job.plot_reliability("AB")
    asked = [request.path for request in job_server.requests]
    assert f"{JOB}/students?label=A" in asked
    assert f"{JOB}/students?sort=f1" in asked


def test_the_asynchronous_job_has_the_same_methods(job_server):
    async def story() -> None:
        async with AsyncClient(job_server.address, "key") as client:
            job = await client.job("job_1")
            assert isinstance(await job.plot_roc("A"), Figure)
            assert (await job.refresh()) is job

    asyncio.run(story())


def test_an_action_on_a_job_renews_its_document(job_server):
    job_server.on("POST", f"{JOB}/cancel", {"id": "job_1", "state": "cancelling"}, 202)
    job_server.on("POST", f"{JOB}/retry", {"id": "job_1", "state": "queued"}, 202)
    job_server.on("GET", f"{JOB}/events", b"event: job_succeeded\ndata: {}\n\n")
    with Client(job_server.address, "key") as client:
        job = client.job("job_1")
        assert job.cancel().state == "cancelling"
        assert job.retry()["state"] == "queued"
        assert [event.type for event in job.follow()] == ["job_succeeded"]
        assert job.wait() is job
        assert job.state == "succeeded"


def test_a_curve_knows_the_shares_at_each_threshold_and_the_cheapest():
    assert CURVE.recall == [0.25, 0.75, 1.0]
    assert CURVE.false_positive_rate == [0.0, 0.1, 0.6]
    assert CURVE.precision == [1.0, 0.75, 0.4]
    assert CURVE.f1 == pytest.approx([0.4, 0.75, 8 / 14])
    assert [CURVE.point_at(threshold) for threshold in (9, 2.0, 0.7, 0.5, -5)] == [0, 0, 0, 1, 2]
    assert [CURVE.at(false_positive_rate=rate) for rate in (0.0, 0.09, 0.1, 0.5, 0.6)] == [
        2.0,
        2.0,
        0.5,
        0.5,
        -1,
    ]
    strict = replace(CURVE, fp=[1, 1, 6])
    with pytest.raises(ValueError, match="no threshold accepts"):
        strict.at(false_positive_rate=0.05)
    assert [CURVE.cheapest(miss) for miss in (0.1, 1, 10)] == [2.0, 0.5, -1.0]


def test_a_roc_curve_goes_from_corner_to_corner_and_marks_the_threshold():
    axes = plots.roc(CURVE).axes[0]
    _, line, point = axes.lines
    assert list(line.get_xdata()) == [0.0, 0.0, 0.1, 0.6, 1.0]
    assert list(line.get_ydata()) == [0.0, 0.25, 0.75, 1.0, 1.0]
    assert (list(point.get_xdata()), list(point.get_ydata())) == ([0.1], [0.75])
    both = plots.roc(Curve.of(POINTS, "A", None), axes)
    assert both is axes.get_figure(root=True)
    assert len(axes.lines) == 5


def test_a_precision_recall_curve_marks_the_threshold():
    line, point = plots.precision_recall(CURVE).axes[0].lines
    assert list(line.get_ydata()) == [1.0, 0.75, 0.4]
    assert (list(point.get_xdata()), list(point.get_ydata())) == ([0.75], [0.75])


def test_labels_are_no_formulas():
    figure = plots.classes([ROWS[2] | {"metrics": {"f1": 0.5}}], "f1")
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [r"\$x_1\$"]
    with pytest.raises(StmsError, match="No student has the metric 'f1'"):
        plots.classes([ROWS[2]], "f1")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    plots._figure_class.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackage, match="pip install matplotlib") as caught:
        plots.roc(CURVE)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, StmsError)
