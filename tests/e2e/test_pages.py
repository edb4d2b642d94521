"""The dashboard of a real server: every page that a trained job, its model and its data set lead to opens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import httpx
import pytest

Json = dict[str, Any]
Call = Callable[..., Any]

MODEL = "shown_flowers"
HYPERPARAMETERS = {
    "features": {"kind": "kernel"},
    "teacher": {"C": 100},
    "student": {"method": "gsvm", "C": 1000},
    "calibration": {"kind": "sigmoid"},
    "threshold": {"folds": 3},
    "evaluation": {"baselines": ["gpc"]},
}
MOST_PAGES = 80
_LINK = re.compile(r'href="(/ui/[^"#]*)')


@pytest.fixture(scope="module")
def job(upload: Call, train: Call, npz: Call, parts: Json) -> Json:
    return train(upload(npz(**parts), "npz")["id"], MODEL, **HYPERPARAMETERS)


@pytest.fixture
def browser(http: httpx.Client) -> Iterator[httpx.Client]:
    """A client that has signed in and sends the cookie alone."""
    key = http.headers["authorization"].removeprefix("Bearer ")
    with httpx.Client(base_url=http.base_url, timeout=30, trust_env=False) as client:
        answer = client.post("/ui/sign-in", headers={"sec-fetch-site": "same-origin"}, data={"key": key})
        assert answer.status_code == 303, answer.text
        yield client


def test_every_page_that_a_job_leads_to_opens(browser: httpx.Client, job: Json):
    first = f"/ui/jobs/{job['id']}"
    waiting, seen = [first, f"/ui/models/{MODEL}", f"/ui/datasets/{job['dataset_id']}"], set()
    while waiting and len(seen) < MOST_PAGES:
        address = waiting.pop(0)
        seen.add(address)
        page = browser.get(address, follow_redirects=True)
        assert page.status_code == 200, (address, page.text[-1500:])
        links = {unescape(link) for link in _LINK.findall(page.text)}
        # The pages of other jobs and models of the server are those of other tests.
        waiting += sorted(
            link
            for link in links - seen - set(waiting)
            if job["id"] in link or MODEL in link or link.count("/") == 2
        )
    for number in range(3):
        for method in ("gsvm", "gpc"):
            of_class = f"{first}/classes/{number}"
            assert any(one.startswith(of_class) and method in one for one in seen), (number, method)
