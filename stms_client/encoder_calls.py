"""Calls of own encoders."""

from __future__ import annotations

from pathlib import Path

from stms_client.calls import Call, decoded, segment, without_none
from stms_client.documents import OwnEncoder


def encoder_path(name: str) -> str:
    """Path of an own encoder."""
    return f"/v1/encoders/{segment(name)}"


def add_encoder(file: Path, name: str, expects: str, output: str, licence: str) -> Call[OwnEncoder]:
    """Upload of an encoder. Uploading the same one again has no effect."""
    params = {"name": name, "input": expects, "output": output or None, "licence": licence or None}
    head = {"Content-Type": "application/vnd.onnx"}
    return Call("POST", "/v1/encoders", decoded, without_none(params), head, file=file)
