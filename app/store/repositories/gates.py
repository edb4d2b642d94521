"""Gates of aliases."""

from __future__ import annotations

import dataclasses
import time
from typing import Final

import sqlalchemy as sa

from app.domain.errors import NotFound, PreconditionFailed
from app.domain.evaluation import Gate
from app.store.dialect import upsert
from app.store.evaluation_tables import gates
from app.store.repositories.scoped import Scoped

_COLUMNS: Final = [gates.c[field.name] for field in dataclasses.fields(Gate)]
_KEYS: Final = ("tenant", "model", "alias")


class Gates(Scoped):
    """Queries on the gates of a tenant. An alias has at most one gate, which is deleted with the alias."""

    def find(self, model: str, alias: str) -> Gate | None:
        """The gate of an alias, or None."""
        row = self._connection.execute(sa.select(*_COLUMNS).where(self._is(model, alias))).first()
        return None if row is None else Gate(**row._mapping)

    def get(self, model: str, alias: str) -> Gate:
        """The gate of an alias. Raises NotFound."""
        found = self.find(model, alias)
        if found is None:
            raise NotFound(f"Alias {alias!r} of {model!r} has no gate.", code="gate_not_found")
        return found

    def of_model(self, model: str) -> dict[str, Gate]:
        """The gates of a model by alias."""
        query = sa.select(*_COLUMNS).where(gates.c.model == model, gates.c.tenant == self.tenant)
        return {row.alias: Gate(**row._mapping) for row in self._connection.execute(query)}

    def set(self, gate: Gate, *, expected_revision: int) -> Gate:
        """Store the gate of an alias as its next revision.

        expected_revision: revision of the present gate, 0 if there must be none. Raises PreconditionFailed.
        """
        self._check_owner(gate.tenant)
        present = self._revision(gate.model, gate.alias, expected_revision)
        stored = dataclasses.replace(gate, revision=present + 1, updated_at=time.time())
        values = dataclasses.asdict(stored)
        changed = {name: value for name, value in values.items() if name not in _KEYS}
        statement = upsert(self._connection, gates).values(**values)
        self._connection.execute(statement.on_conflict_do_update(index_elements=list(_KEYS), set_=changed))
        return stored

    def delete(self, model: str, alias: str, *, expected_revision: int) -> None:
        """Delete the gate of an alias. Raises NotFound and PreconditionFailed."""
        self.get(model, alias)
        self._revision(model, alias, expected_revision)
        self._connection.execute(sa.delete(gates).where(self._is(model, alias)))

    def _revision(self, model: str, alias: str, expected: int) -> int:
        found = self.find(model, alias)
        present = 0 if found is None else found.revision
        if present != expected:
            text = f"The gate of alias {alias!r} of {model!r} has changed since it was read."
            raise PreconditionFailed(text)
        return present

    def _is(self, model: str, alias: str) -> sa.ColumnElement[bool]:
        return sa.and_(gates.c.model == model, gates.c.alias == alias, gates.c.tenant == self.tenant)
