"""Questions to models: is this the target class?"""

from __future__ import annotations

from collections.abc import Sequence

from stms_client import calls
from stms_client.aio.connection import Connection
from stms_client.aio.local import AsyncLocal, OnStale
from stms_client.arrays import ClassName, Image, Row, Rows, in_order, question
from stms_client.documents import Version
from stms_client.errors import InvalidInput
from stms_client.results import Decision, Decisions, Explain, FaultyRows, Package
from stms_client.tables import is_table


class Queries(Connection):
    """A model is named ``name``, ``name@alias`` or ``name@3``. A class is named by its name, or by a whole
    number or truth value as labels of training rows are: 3 is "3", and True is "true".

    A row is a list of numbers or an array (d,) in the order of the columns; a record, which is a mapping or a
    Series of pandas with values by the names of their columns, None, NaN and NA for missing ones; or a sparse
    row ``{"indices": …, "values": …}``, with ``"index_base": 1`` if its indices count from 1. Rows are a list
    of rows, an array (n, d), or a data frame of pandas or Polars, a table of Arrow or a mapping of columns,
    whose columns are matched by their names. A model whose only column is one of texts is asked with
    ``text=`` or ``texts=`` in place of rows, and one whose only column is one of pictures with ``image=``.
    """

    async def is_class(
        self, model: str, label: ClassName, x: Row | None = None, *, text: str | None = None
    ) -> bool:
        """Whether one row or text belongs to the class."""
        decision = await self.query(model, label, x, text=text)
        return decision.match

    async def query(
        self,
        model: str,
        label: ClassName,
        x: Row | None = None,
        *,
        text: str | None = None,
        image: Image | None = None,
        explain: Explain = False,
    ) -> Decision:
        """The decision on one row, text or picture. image: the path of a JPEG, PNG or WebP, or its bytes, for
        a model whose only column is one of pictures. explain: include the gate, the rejection and its piece;
        with ``"columns"`` also what each column adds to the score.
        """
        return await self.do(calls.query(model, label, question(x, text, image), explain))

    async def query_rows(
        self,
        model: str,
        label: ClassName,
        rows: Rows | None = None,
        *,
        texts: Sequence[str] | None = None,
        explain: Explain = False,
        faulty_rows: FaultyRows = "refuse",
    ) -> Decisions:
        """The decisions on many rows or texts.

        An array (n, d) is sent, and its scores returned, as raw numbers. For a data frame the version is read
        first: of a model of records its columns are sent by name, of a model of numbers they are put into
        order. Raises InvalidInput where one is missing or unknown, unless the service says so. explain: as in
        `query`, of each row; by columns of at most 100 rows. faulty_rows: ``"report"`` answers the rows that
        can be answered, with the faults of the others as ``errors``; ``"refuse"`` raises for the first.
        """
        if rows is None and texts is not None:
            return await self.do(calls.query_texts(model, label, texts, explain, faulty_rows))
        if rows is None or texts is not None:
            raise InvalidInput("A query is about rows or about texts: give one of them.")
        if is_table(rows):
            name, _, wanted = model.partition("@")
            version = await self.do(calls.get(calls.version_path(name, wanted or "latest"), Version))
            # The version that answers is the one whose columns were read.
            model = f"{name}@{version['version']}"
            if version.get("encoder_digest") is not None:
                return await self.do(calls.query_columns(model, label, rows, explain, faulty_rows))
            rows = in_order(rows, version["inputs"].get("columns"))
        return await self.do(calls.query_rows(model, label, rows, explain, faulty_rows))

    async def query_classes(
        self,
        model: str,
        labels: Sequence[ClassName],
        x: Row | None = None,
        *,
        text: str | None = None,
        image: Image | None = None,
        explain: Explain = False,
    ) -> dict[str, Decision]:
        """The decision of each class on one row, text or picture, all by the same version of the model.

        The names of the classes are its keys, also of those that were asked about by numbers.
        """
        return await self.do(calls.query_classes(model, labels, question(x, text, image), explain))

    async def predict(
        self, model: str, x: Row | None = None, *, text: str | None = None, image: Image | None = None
    ) -> str:
        """The class that the full teacher assigns to one row, text or picture."""
        return await self.do(calls.predict(model, question(x, text, image)))

    def local(
        self,
        model: str,
        labels: Sequence[ClassName],
        *,
        poll: float = 2.0,
        max_stale: float = 60.0,
        on_stale: OnStale = "raise",
    ) -> AsyncLocal:
        """The students of some classes, to be evaluated in this program: enter it to fetch them.

        The key needs the scope ``download``, and this program NumPy and safetensors. poll: about how many
        seconds pass between two polls of the service, which find new versions and a revoked key. max_stale:
        seconds after the last answer of the service for which answers are given without it; then calls raise
        Stale, or with ``on_stale="ask"`` ask the service.
        """
        return AsyncLocal(self, model, labels, poll=poll, max_stale=max_stale, on_stale=on_stale)

    async def package(
        self, model: str, label: ClassName, *, etag: str | None = None, report: str | None = None
    ) -> Package | None:
        """The student of a class as bytes; None if it has the ETag ``etag``.

        report: the number of a version and how many queries were answered locally with it, ``"3:1200"``.
        """
        return await self.do(calls.package(model, label, etag, report))

    async def packages(self, model: str, labels: Sequence[ClassName]) -> dict[str, Package]:
        """The students of up to 256 classes as bytes, all of one version, by one request."""
        return await self.do(calls.packages(model, labels))

    async def map(self, model: str, label: ClassName) -> bytes:
        """The map that the package of a class names, as bytes; packages of one version that share it name its
        SHA-256.
        """
        return await self.do(calls.map_of(model, label))

    async def encoder(self, model: str, label: ClassName) -> bytes:
        """The encoder of records or texts of the version of a class, as bytes."""
        return await self.do(calls.encoder(model, label))
