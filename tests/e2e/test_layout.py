"""The pages of a wide table in a real browser, on a phone and on a desk: all fits, and no word is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.app.web.browsing import DESK, NEEDS_CHROMIUM, PHONE, browser, visit
from tests.e2e.test_keyboard import sign_in
from tests.e2e.test_record_pages import look

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Json = dict[str, Any]
Call = Callable[..., Json]

pytestmark = [pytest.mark.long, NEEDS_CHROMIUM]

MODEL = "subscribers"
SERVICES = ("PhoneService", "InternetService", "OnlineSecurity", "DeviceProtection", "StreamingMovies")
PAYMENTS = ("Electronic check", "Bank transfer (automatic)", "Credit card (automatic)", "Mailed check")
CONTRACTS = ("Month-to-month", "One year", "Two year")


@pytest.fixture
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def subscribers() -> str:
    """A table of 19 columns of every kind, with long names and values, numbers with gaps, and an id."""
    names = ["SubscriberIdentifier", "gender", "SeniorCitizen", *SERVICES]
    names += [f"{name}Before" for name in SERVICES]
    names += [
        "Contract",
        "PaymentMethod",
        "MonthlyCharges",
        "TotalCharges",
        "FirstContract",
        "Correspondence",
    ]
    lines = [",".join([*names, "Churn"])]
    for k in range(200):
        leaves = k % 3 == 0
        row = [f"{7590 + 13 * k}-VHVEG", ("Female", "Male")[k % 2], str(k % 2)]
        row += [("Yes", "No", "No internet service")[(k // (j + 1) + leaves) % 3] for j in range(10)]
        row += [CONTRACTS[(k // 2 + leaves) % 3], PAYMENTS[k % 4]]
        row += ["" if k % 17 == 0 else f"{19.85 + k % 50 + 20 * leaves:.2f}", f"{108.15 * (k % 9 + 1):.2f}"]
        words = ("satisfied and recommends us", "disappointed about unannounced interruptions")[leaves]
        row += [f"20{10 + k % 12}-0{1 + k % 9}-1{k % 9}", f"{words} since appointment number {k * 7919}"]
        lines.append(",".join([*row, ("No", "Yes")[leaves]]))
    return "\n".join(lines)


@pytest.fixture(scope="module")
def things(upload: Call, train: Call, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    """The file of a wide table, and a job that was trained on it."""
    path = tmp_path_factory.mktemp("table") / "subscribers.csv"
    path.write_text(subscribers(), encoding="utf-8")
    dataset = upload(path.read_bytes(), "csv", label_column="Churn", name=path.name)
    return path, train(dataset["id"], MODEL, evaluation={"test_fraction": 0.3})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_pages_of_a_wide_table_fit_and_break_no_word(
    chromium: Browser, admin: httpx.Client, things: tuple[Path, Json], scheme: Any, viewport: Any
) -> None:
    from playwright.sync_api import expect

    path, job = things
    dataset, model = f"/ui/datasets/{job['dataset_id']}", f"/ui/models/{MODEL}"
    of_job = f"/ui/jobs/{job['id']}"
    addresses = ["/ui/jobs", of_job, f"{of_job}/classes/1", f"{of_job}/clone"]
    addresses += ["/ui/datasets", dataset, f"{dataset}/train", "/ui/models", model, f"{model}/versions/1"]
    addresses += [f"{model}/aliases/latest", f"{model}/move?version=1&alias=new", f"{model}/compare?a=1&b=1"]
    addresses += ["/ui/keys", "/ui/audit", "/ui/traffic", "/ui/workers", "/ui/health", "/ui/bundles"]
    is_phone = viewport is PHONE
    options = {"color_scheme": scheme, "has_touch": is_phone, "is_mobile": is_phone}
    faults: list[str] = []
    with visit(chromium, str(admin.base_url).rstrip("/"), viewport=viewport, **options) as person:
        sign_in(person, admin)
        for address in addresses:
            person.open(address)
            faults += [f"{address}: {fault}" for fault in person.layout_faults()]
        look(person, path)
        person.page.locator("#found h2:focus").wait_for()
        faults += [f"a look at the file: {fault}" for fault in person.layout_faults()]
        person.open(f"{model}/ask?class=Yes")
        with person.page.expect_navigation():
            person.page.locator("[name=example][value=class]").click()
        faults += [f"an answer: {fault}" for fault in person.layout_faults()]
        verdict = person.page.locator(".verdict")
        button = person.page.get_by_role("button", name="Ask", exact=True)
        expect(verdict).to_be_in_viewport()
        person.page.get_by_label("OnlineSecurity", exact=True).focus()
        expect(button).to_be_in_viewport()
        if not is_phone:
            person.page.get_by_label("FirstContract", exact=True).focus()
            expect(verdict).to_be_in_viewport()
    assert not faults, "\n".join(faults)
