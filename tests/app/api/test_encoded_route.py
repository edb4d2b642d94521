"""Routes that encode their responses in the thread of the endpoint."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Response
from fastapi.exceptions import ResponseValidationError
from pydantic import BaseModel, PlainSerializer

from app.api.encoded_route import EncodedRoute
from app.domain.document import OWN, Document, Time

threads: list[int] = []
router = APIRouter(route_class=EncodedRoute)


def remembered(number: int) -> int:
    threads.append(threading.get_ident())
    return number


class View(BaseModel):
    number: Annotated[int, PlainSerializer(remembered)]


@router.post("/made", status_code=201)
def made(response: Response) -> View:
    response.headers["x-own"] = "1"
    return View(number=1)


@router.post("/existing", status_code=201)
def existing(response: Response) -> View:
    response.status_code = 200
    return View(number=2)


@dataclass(frozen=True, slots=True)
class Row(Document):
    at: Time
    own: Annotated[int, OWN] = 1


class Several(BaseModel):
    name: str
    views: list[View]
    rows: list[Row]
    none: list[View]
    numbers: list[float]
    is_last: bool


SEVERAL = Several(
    name="größe",
    views=[View(number=4), View(number=5)],
    rows=[Row(0.0), Row(1.5)],
    none=[],
    numbers=[0.5, float("inf")],
    is_last=True,
)


@router.get("/several")
def several() -> Several:
    return SEVERAL


@router.get("/own", response_model=View)
def own() -> Any:
    return Response(status_code=304)


@router.get("/wrong", response_model=View)
def wrong() -> Any:
    return {"number": "none"}


@router.get("/small")
async def small() -> View:
    return View(number=3)


@router.delete("/nothing", status_code=204)
def nothing() -> None: ...


async def ask(method: str, path: str) -> httpx.Response:
    app = FastAPI()
    app.include_router(router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        return await client.request(method, path)


async def test_a_large_result_is_encoded_in_the_thread_of_its_endpoint():
    threads.clear()
    answer = await ask("POST", "/made")
    assert (answer.status_code, answer.json(), answer.headers["x-own"]) == (201, {"number": 1}, "1")
    assert answer.headers["content-type"] == "application/json"
    assert threads
    assert threading.get_ident() not in threads


async def test_objects_in_parts_are_the_same_json():
    answer = await ask("GET", "/several")
    assert answer.content == SEVERAL.model_dump_json().encode()
    assert answer.json()["rows"] == [{"at": "1970-01-01T00:00:00.000Z"}, {"at": "1970-01-01T00:00:01.500Z"}]


async def test_other_threads_run_between_the_objects_of_a_list(monkeypatch):
    """While pydantic encodes they do not, so that no call encodes a whole page."""
    sizes = []
    dump = BaseModel.model_dump_json

    def measured(self: BaseModel, **options: Any) -> str:
        text = dump(self, **options)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(BaseModel, "model_dump_json", measured)
    answer = await ask("GET", "/several")
    assert answer.json()["views"] == [{"number": 4}, {"number": 5}]
    assert max(sizes) < len(answer.content) / 2


async def test_status_own_responses_and_coroutines_are_as_fastapi_has_them():
    existing, own, small, nothing = await asyncio.gather(
        ask("POST", "/existing"), ask("GET", "/own"), ask("GET", "/small"), ask("DELETE", "/nothing")
    )
    assert (existing.status_code, existing.json()) == (200, {"number": 2})
    assert (own.status_code, own.content) == (304, b"")
    assert (small.status_code, small.json()) == (200, {"number": 3})
    assert (nothing.status_code, nothing.content) == (204, b"")


async def test_a_result_that_is_not_what_the_route_declares_is_an_error():
    with pytest.raises(ResponseValidationError):
        await ask("GET", "/wrong")
