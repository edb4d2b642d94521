"""Own encoders: files that make vectors of pictures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from stms_client import calls
from stms_client.aio.connection import Connection
from stms_client.documents import OwnEncoder
from stms_client.encoder_calls import add_encoder, encoder_path


class Encoders(Connection):
    """Adding and deleting needs a key of an administrator."""

    def own_encoders(self) -> AsyncIterator[OwnEncoder]:
        """The own encoders of the tenant, by name."""
        return self._listed("/v1/encoders", OwnEncoder)

    async def own_encoder(self, name: str) -> OwnEncoder:
        """One own encoder: its digest, its width and what it expects."""
        return await self.do(calls.get(encoder_path(name), OwnEncoder))

    async def add_encoder(
        self,
        file: str | Path,
        *,
        expects: str,
        name: str | None = None,
        output: str = "",
        licence: str = "",
    ) -> OwnEncoder:
        """Add an ONNX file as an encoder, which the server checks and tries.

        expects: its input, such as ``image:224x224:rgb:imagenet``. name: by default that of the file without
        its ending. output: name of the output with the vector, if there are several. licence: of the file.
        """
        path = Path(file)
        return await self.do(add_encoder(path, name or path.stem, expects, output, licence))

    async def delete_encoder(self, name: str) -> None:
        """Delete an own encoder that neither a version nor an unfinished job uses."""
        await self.do(calls.delete(encoder_path(name)))
