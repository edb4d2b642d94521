"""Questions to models: is this the target class?"""

from __future__ import annotations

from collections.abc import Sequence

from stms_client import calls
from stms_client.aio.connection import Connection
from stms_client.arrays import Row, Rows
from stms_client.results import Decision, Decisions


class Queries(Connection):
    """A model is named ``name``, ``name@alias`` or ``name@3``.

    A row is a list of numbers, a sparse row ``{"indices": …, "values": …}``, or an array (d,) of NumPy,
    pandas or another library. Rows are a list of rows, or an array or data frame (n, d) with the columns of
    the data set in their order.
    """

    async def is_class(self, model: str, label: str, x: Row) -> bool:
        """Whether one row belongs to the class."""
        decision = await self.query(model, label, x)
        return decision.match

    async def query(self, model: str, label: str, x: Row, *, explain: bool = False) -> Decision:
        """The decision on one row. explain: include the gate, the rejection and its piece."""
        return await self.do(calls.query(model, label, x, explain))

    async def query_rows(self, model: str, label: str, rows: Rows, *, explain: bool = False) -> Decisions:
        """The decisions on many rows. An array (n, d) is sent, and its scores returned, as raw numbers."""
        return await self.do(calls.query_rows(model, label, rows, explain))

    async def query_classes(
        self, model: str, labels: Sequence[str], x: Row, *, explain: bool = False
    ) -> dict[str, Decision]:
        """The decision of each class on one row, all by the same version of the model."""
        return await self.do(calls.query_classes(model, labels, x, explain))

    async def predict(self, model: str, x: Row) -> str:
        """The class that the full teacher assigns to one row."""
        return await self.do(calls.predict(model, x))
