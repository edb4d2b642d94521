"""Questions to models: is this the target class?"""

from __future__ import annotations

from collections.abc import Sequence

from stms_client import calls
from stms_client.aio.connection import Connection
from stms_client.arrays import Row, Rows, in_order
from stms_client.documents import Version
from stms_client.results import Decision, Decisions


class Queries(Connection):
    """A model is named ``name``, ``name@alias`` or ``name@3``.

    A row is a list of numbers or an array (d,) in the order of the columns; numbers by the names of their
    columns, as a mapping or a Series of pandas, which the service puts into that order and refuses where
    names do not fit; or a sparse row ``{"indices": …, "values": …}``, with ``"index_base": 1`` if its indices
    count from 1. Rows are a list of rows, an array (n, d), or a data frame, whose columns are put into order,
    too.
    """

    async def is_class(self, model: str, label: str, x: Row) -> bool:
        """Whether one row belongs to the class."""
        decision = await self.query(model, label, x)
        return decision.match

    async def query(self, model: str, label: str, x: Row, *, explain: bool = False) -> Decision:
        """The decision on one row. explain: include the gate, the rejection and its piece."""
        return await self.do(calls.query(model, label, x, explain))

    async def query_rows(self, model: str, label: str, rows: Rows, *, explain: bool = False) -> Decisions:
        """The decisions on many rows. An array (n, d) is sent, and its scores returned, as raw numbers.

        The columns of a data frame are put into the order of the model by their names, for which its version
        is read first. Raises InvalidInput where one is missing or unknown.
        """
        if hasattr(rows, "columns"):
            name, _, wanted = model.partition("@")
            version = await self.do(calls.get(calls.version_path(name, wanted or "latest"), Version))
            rows = in_order(rows, version["inputs"].get("columns"))
            # The version that answers is the one whose columns were read.
            model = f"{name}@{version['version']}"
        return await self.do(calls.query_rows(model, label, rows, explain))

    async def query_classes(
        self, model: str, labels: Sequence[str], x: Row, *, explain: bool = False
    ) -> dict[str, Decision]:
        """The decision of each class on one row, all by the same version of the model."""
        return await self.do(calls.query_classes(model, labels, x, explain))

    async def predict(self, model: str, x: Row) -> str:
        """The class that the full teacher assigns to one row."""
        return await self.do(calls.predict(model, x))
