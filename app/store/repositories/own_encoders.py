"""Own encoders of a tenant."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from app.domain.errors import NotFound
from app.domain.own_encoder import OwnEncoder
from app.encoders.specification import BUILT_IN, EncoderSpecification
from app.store.encoder_tables import own_encoders
from app.store.paging import bounded_page
from app.store.repositories.scoped import Scoped
from app.store.tables import is_unfinished, jobs, model_versions

_COLUMNS: Final = [own_encoders.c[field.name] for field in dataclasses.fields(OwnEncoder)]
_ROW_BYTES: Final = 4096
"""What a row takes at most."""


class OwnEncoders(Scoped):
    """Queries on own encoders."""

    def add(self, encoder: OwnEncoder) -> None:
        """Insert an encoder, whose name must be free."""
        self._check_owner(encoder.tenant)
        self._connection.execute(sa.insert(own_encoders), dataclasses.asdict(encoder))

    def find(self, name: str) -> OwnEncoder | None:
        """The encoder of this name; None if there is none."""
        query = sa.select(*_COLUMNS).where(own_encoders.c.tenant == self.tenant, own_encoders.c.name == name)
        row = self._connection.execute(query).first()
        return None if row is None else OwnEncoder(**row._mapping)

    def get(self, name: str) -> OwnEncoder:
        """The encoder of this name. Raises NotFound."""
        encoder = self.find(name)
        if encoder is None:
            raise NotFound(f"There is no encoder {name!r}.", code="encoder_not_found")
        return encoder

    def specification(self, reference: str) -> EncoderSpecification:
        """The encoder that ``NAME`` or ``NAME@IDENTITY`` means, a built-in one or one of the tenant.

        Raises NotFound if there is none, or if the one of this name has another identity.
        """
        name, _, identity = reference.partition("@")
        encoder = BUILT_IN.get(name) or EncoderSpecification(**self.get(name).specification)
        if identity and encoder.identity != identity:
            message = f"The encoder {name!r} is another one now; its identity is no longer {identity:.12}…."
            raise NotFound(message, code="encoder_not_found")
        return encoder

    def page(self, *, limit: int, after: str | None = None) -> tuple[Sequence[OwnEncoder], bool]:
        """Encoders behind the name ``after``, by name, and whether more follow."""
        condition = own_encoders.c.tenant == self.tenant
        if after is not None:
            condition &= own_encoders.c.name > after
        query = sa.select(*_COLUMNS).where(condition).order_by(own_encoders.c.name)
        rows, has_more = bounded_page(self._connection, query, sa.literal(_ROW_BYTES), limit)
        return [OwnEncoder(**row._mapping) for row in rows], has_more

    def used(self) -> tuple[int, int]:
        """Number of the tenant's encoders, and bytes of their files."""
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(own_encoders.c.size), 0))
        count, size = self._connection.execute(query.where(self._owns(own_encoders))).one()
        return int(count), int(size)

    def user_of(self, encoder: EncoderSpecification) -> str | None:
        """A version or an unfinished job of the tenant that uses an encoder; None if none does."""
        text = f"%{encoder.identity}%"
        version = (
            sa.select(model_versions.c.model, model_versions.c.version)
            .join(jobs, jobs.c.id == model_versions.c.job_id)
            .where(self._owns(model_versions), sa.cast(jobs.c.provenance, sa.Text).like(text))
        )
        row = self._connection.execute(version.limit(1)).first()
        if row is not None:
            return f"the version {row.model}@{row.version}"
        named = sa.cast(jobs.c.spec, sa.Text).like(text)
        job = sa.select(jobs.c.id).where(self._owns(jobs), is_unfinished, named)
        row = self._connection.execute(job.limit(1)).first()
        return None if row is None else f"the job {row.id}"

    def delete(self, name: str) -> None:
        """Delete an encoder if it is there."""
        condition = (own_encoders.c.tenant == self.tenant, own_encoders.c.name == name)
        self._connection.execute(sa.delete(own_encoders).where(*condition))
