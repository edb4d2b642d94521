"""Predictions of whole teachers, which may cost a million times as much as a query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from app.auth.shares import PREDICT_THREADS, Budgets
from app.domain.entities import Caller
from app.domain.errors import InvalidRequest
from app.http.types import Body
from app.processes.os_process import compute_in_background
from app.serving.cache import ServableTeacher
from app.serving.query.negotiation import RequestFormat
from app.serving.query.predict import parse_prediction
from app.serving.work import RequestLimits
from app.settings import Settings

Result = TypeVar("Result")

_NICENESS: Final = 15
"""An event loop that has received large bodies must still have its turn as soon as it wakes."""


class Predictor:
    """Computes predictions in two own threads, of which one key uses one at a time, for a block of work.

    Blocks of different tenants, and of their keys, alternate, so that a key with much work delays another
    by about one block. Between two blocks a prediction ends if its client is gone or its task was
    cancelled, which the server does at the end of a drain.
    """

    def __init__(self, settings: Settings, budgets: Budgets) -> None:
        self._limits = RequestLimits(
            settings.max_query_bytes, settings.max_query_rows, settings.max_query_work
        )
        self._turns = budgets.predict_threads
        self._threads = ThreadPoolExecutor(
            PREDICT_THREADS, "stms-predict", compute_in_background, (_NICENESS,)
        )

    async def predict(
        self,
        caller: Caller,
        servable: ServableTeacher,
        data: Body,
        format_: RequestFormat,
        *,
        scores: bool,
        target: str | None,
        charge: Callable[[int], None],
        is_disconnected: Callable[[], Awaitable[bool]],
    ) -> bytes:
        """The JSON answer to one request.

        scores, target: as in `PredictBody`, from the query string. charge: called
        with the multiply-adds of the request before they are computed. is_disconnected: of the client.

        Raises InvalidRequest, TooLarge, and NotFound for an unknown target.
        """
        prediction = await self._in_turn(
            caller, parse_prediction, servable, data, format_, self._limits, scores, target
        )
        charge(prediction.work)
        blocks, results = prediction.blocks(), list[bytes]()
        while (block := await self._in_turn(caller, next, blocks, None)) is not None:
            results.append(block)
            if await is_disconnected():
                raise InvalidRequest("The client disconnected.", code="client_disconnected")
        return await self._in_turn(caller, prediction.answer, results)

    def close(self) -> None:
        """Accept no more work; a running block ends on its own."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_turn(self, caller: Caller, work: Callable[..., Result], *arguments: Any) -> Result:
        async with self._turns.turn(caller):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
