"""Files that clients put into the object store at presigned addresses, until they become data sets."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa

from app.domain.entities import PlannedUpload
from app.domain.errors import NotFound
from app.store.repositories.scoped import Scoped
from app.store.tables import uploads


class Uploads(Scoped):
    """Queries on planned uploads."""

    def add(self, upload: PlannedUpload) -> None:
        """Insert an upload."""
        self._check_owner(upload.tenant)
        self._connection.execute(sa.insert(uploads), asdict(upload))

    def get(self, upload_id: str) -> PlannedUpload:
        """One upload, expired or not. Raises NotFound."""
        query = sa.select(uploads).where(self._owns(uploads), uploads.c.id == upload_id)
        row = self._connection.execute(query).first()
        if row is None:
            raise NotFound(f"There is no upload {upload_id}.", code="upload_not_found")
        return PlannedUpload(**row._mapping)

    def unexpired(self, now: float) -> tuple[int, int]:
        """Number and bytes of the uploads that have not expired."""
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(uploads.c.bytes), 0))
        query = query.where(self._owns(uploads), uploads.c.expires_at > now)
        count, size = self._connection.execute(query).one()
        return int(count), int(size)

    def delete(self, upload_id: str) -> None:
        """Delete an upload if it is there."""
        self._connection.execute(sa.delete(uploads).where(self._owns(uploads), uploads.c.id == upload_id))

    def delete_expired(self, before: float) -> None:
        """Delete the uploads that expired before this time."""
        self._connection.execute(sa.delete(uploads).where(self._owns(uploads), uploads.c.expires_at < before))
