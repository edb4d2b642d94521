"""``python -m docs.site.screenshots``: the pictures of docs/dashboard.md, of a server with data.

Every page of the dashboard is shown once in light and once in dark colours. The pictures are WebP files, some
ten times smaller than PNG.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count, product
from math import sin
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from app.commands.demo.digits import DigitsFile, write_digits
from app.commands.demo.temporary_server import TemporaryServer, temporary_server
from stms_client import Client, NotFound

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

FOLDER: Final = Path(__file__).parents[1] / "images"
SCHEMES: Final = ("light", "dark")
_WIDTH, _HEIGHT, _MOST_HEIGHT = 1200, 640, 1100
_QUALITY = 70
_ASKED_SECONDS = 30.0

Json = dict[str, Any]

_CHOSEN: Final[Json] = {
    "features": {"kind": "nystroem", "n_components": 200},
    "student": {"method": "gsvm", "C": 1000},
    "threshold": {"rule": "f1", "folds": 3},
    "calibration": {"kind": "sigmoid"},
    "evaluation": {"baselines": ["svm"]},
}
_SEARCHED: Final[Json] = {
    "features": {"kind": "nystroem", "n_components": 100},
    "student": {"method": "gsvm"},
    "tuning": {"grid": {"C": [1, 10, 100, 1e3, 1e4], "margins": [0.5, 1], "floors": [0.1, 0.5]}, "folds": 3},
}


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture. route: of the page, as the dashboard declares it. query: what follows in its address.

    click: what to press first, if anything. wait: the element that must be there.
    signed_in: whether the browser has a session. top: the element with which the picture begins.
    job: which of the two that were trained.
    """

    route: str
    query: str = ""
    click: str = ""
    signed_in: bool = True
    wait: str = "main"
    top: str = ""
    job: int = 0


_WATCHED: Final = ("1", "3", "8")
"""Classes with a monitor."""
_WRITTEN_SECONDS: Final = 3.0
"""Until samples are written."""

SHOTS: Final[dict[str, Shot]] = {
    "sign-in": Shot("/ui/sign-in", signed_in=False),
    "jobs": Shot("/ui/jobs"),
    "job": Shot("/ui/jobs/{job_id}"),
    "suspects": Shot("/ui/jobs/{job_id}/suspects"),
    "class": Shot("/ui/jobs/{job_id}/classes/{class_index}", wait="[data-slider]:not([hidden])"),
    "search": Shot("/ui/jobs/{job_id}/classes/{class_index}", job=1, top="#search"),
    "models": Shot("/ui/models"),
    "model": Shot("/ui/models/{model}"),
    "version": Shot("/ui/models/{model}/versions/{version}"),
    "compare": Shot("/ui/models/{model}/compare", "?a=1&b=2"),
    "alias": Shot("/ui/models/{model}/aliases/{alias}"),
    "live": Shot("/ui/models/{model}/aliases/{alias}/live"),
    "move": Shot("/ui/models/{model}/move", "?alias=production&version=2"),
    "ask": Shot("/ui/models/{model}/ask", "?at=production&class=8", click="[name=example][value=class]"),
    "evaluations": Shot("/ui/evaluations"),
    "evaluation": Shot("/ui/evaluations/{evaluation_id}"),
    "bundles": Shot("/ui/bundles"),
    "datasets": Shot("/ui/datasets"),
    "dataset": Shot("/ui/datasets/{dataset_id}"),
    "train": Shot("/ui/datasets/{dataset_id}/train"),
    "clone": Shot("/ui/jobs/{job_id}/clone"),
    "keys": Shot("/ui/keys"),
    "audit": Shot("/ui/audit"),
    "traffic": Shot("/ui/traffic", wait="#models-title"),
    "workers": Shot("/ui/workers"),
    "health": Shot("/ui/health"),
}
"""By the name of the pictures: NAME-light.webp and NAME-dark.webp."""


def pictures() -> list[str]:
    """The file names of all pictures."""
    return [f"{name}-{scheme}.webp" for name in SHOTS for scheme in SCHEMES]


def take(folder: Path, names: frozenset[str] = frozenset(SHOTS)) -> None:
    """Take the pictures with these names into ``folder``, from a server that lives as long as this takes."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="stms-pictures-") as temporary,
        temporary_server(Path(temporary), STMS_QUERY_SAMPLES="ids") as server,
        sync_playwright() as playwright,
    ):
        values = _fill(server, Path(temporary))
        in_background = _ask(server, values) if "traffic" in names else nullcontext()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with in_background:
            for scheme, signed_in in product(SCHEMES, (False, True)):
                with _context(browser, scheme, server, signed_in) as context:
                    for name in sorted(names):
                        if SHOTS[name].signed_in is signed_in:
                            picture = _picture(context, server.address, SHOTS[name], values)
                            (folder / f"{name}-{scheme}.webp").write_bytes(picture)
        browser.close()


@contextmanager
def _ask(server: TemporaryServer, values: Json) -> Iterator[None]:
    """Queries in a rhythm that rises and falls, some of which are refused; the first half a minute passes."""
    stop = threading.Event()

    def ask() -> None:
        with Client(server.address, api_key=server.key) as stms:
            for turn in count():
                label = str(turn % 10) if turn % 40 else "no such class"
                with suppress(NotFound):
                    stms.query_rows("digits@production", label, values["rows"])
                if stop.wait(0.02 + 0.08 * (1 + sin(turn / 60))):
                    return

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        stop.wait(_ASKED_SECONDS)
        yield
    finally:
        stop.set()
        asking.join()


@contextmanager
def _context(
    browser: Browser, scheme: Any, server: TemporaryServer, signed_in: bool
) -> Iterator[BrowserContext]:
    """A window of a browser with this colour scheme, signed in if asked for."""
    context = browser.new_context(
        viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme=scheme, reduced_motion="reduce"
    )
    try:
        if signed_in:
            page = context.new_page()
            page.goto(f"{server.address}/ui/sign-in")
            page.fill("[name=key]", server.key)
            page.click("button.primary")
            page.wait_for_selector("nav")
            page.close()
        yield context
    finally:
        context.close()


def _picture(context: BrowserContext, address: str, shot: Shot, values: Json) -> bytes:
    """A page from its top, as high as its content up to a limit. Raises if the page reports an error."""
    page = context.new_page()
    answer = page.goto(address + (shot.route + shot.query).format(job_id=values["jobs"][shot.job], **values))
    if answer is None or not answer.ok:
        raise RuntimeError(f"{shot.route}: {answer and answer.status} {page.inner_text('body')[:500]}")
    if shot.click:
        with page.expect_navigation():
            page.click(shot.click)
    page.wait_for_selector(shot.wait)
    height = min(int(page.evaluate("document.documentElement.scrollHeight")), _MOST_HEIGHT)
    page.set_viewport_size({"width": _WIDTH, "height": max(height, _HEIGHT // 2)})
    if shot.top:
        page.eval_on_selector(shot.top, "part => part.scrollIntoView()")
    session = context.new_cdp_session(page)
    taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": _QUALITY})
    page.close()
    return base64.b64decode(taken["data"])


def _fill(server: TemporaryServer, folder: Path) -> Json:
    """Put data set, jobs, versions, aliases and keys on the server; returns the values of the addresses."""
    digits = write_digits(folder)
    with Client(server.address, api_key=server.key) as stms:
        dataset = stms.upload_dataset(digits.path, name="digits")
        jobs = [stms.submit_job(dataset["id"], "digits", spec) for spec in (_CHOSEN, _SEARCHED)]
        cancelled = stms.submit_job(dataset["id"], "sketch", _SEARCHED)
        stms.cancel_job(cancelled["id"])
        for version, job in enumerate(jobs, 1):
            stms.wait_for_job(job["id"])
            stms.point_alias("digits", "production", version)
        stms.point_alias("digits", "production", 1)
        stms.create_key("till", models=["digits"])
        stms.create_key("nightly training", scopes=["train"])
        _watch(stms, digits)
        compared = stms.evaluate("digits@2", dataset["id"], baseline="digits@1", tolerance=0.1)
        stms.wait_for_evaluation(compared["id"])
    values = {
        "model": "digits",
        "alias": "production",
        "version": 1,
        "class_index": 8,
        "dataset_id": dataset["id"],
        "evaluation_id": compared["id"],
    }
    return values | {"jobs": [job["id"] for job in jobs], "rows": digits.X_test[:1]}


def _watch(stms: Client, digits: DigitsFile) -> None:
    """Ask classes with a monitor, and say of all samples whether they were right."""
    promises = {name: {"max_false_positive_rate": 0.01, "min_precision": 0.8} for name in _WATCHED}
    ask = {"yes": 0.8, "floor": 0.1, "no": "uniform"}
    stms.put_monitor("digits", "production", classes=promises, ask=ask)
    stms.query_rows("digits@production", "8", digits.X_test)
    for name in _WATCHED:
        stms.query_rows("digits@production", name, digits.X_test)
    time.sleep(_WRITTEN_SECONDS)
    items = [
        {"sample": one["id"], "truth": str(digits.y_test[one["row"]])}
        for one in stms.samples("digits", "production")
    ]
    for first in range(0, len(items), 1000):
        stms.give_feedback(items[first : first + 1000])


def main() -> None:
    """Take all pictures, or those that are named."""
    names = frozenset(sys.argv[1:]) or frozenset(SHOTS)
    if unknown := names - set(SHOTS):
        sys.exit(f"There are no pictures {', '.join(sorted(unknown))}; there are {', '.join(SHOTS)}.")
    take(FOLDER, names)
    size = sum(path.stat().st_size for path in FOLDER.glob("*.webp"))
    print(f"{len(names) * len(SCHEMES)} pictures in {FOLDER}, all together {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
