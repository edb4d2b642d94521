"""The settings of the processes that encode pictures, a part of `app.settings.Settings`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings


class EncoderSettings(BaseSettings):
    """How many processes encode, what they keep, and what they give up."""

    encoder_processes: int = Field(
        1,
        ge=1,
        le=16,
        description="Child processes of an encoder of pictures in each process that answers or trains.",
    )
    encoder_cache_mb: int = Field(
        64,
        ge=0,
        le=65_536,
        description="Vectors of pictures that a process keeps, in MiB: the same picture is encoded once.",
    )
    encoder_sandbox: Literal["seccomp", "limits"] = Field(
        "seccomp",
        description="What the processes that decode pictures give up: seccomp: all system calls but a short "
        "list, where the kernel can refuse them, and own encoders do not run elsewhere; limits: only memory "
        "and time are limited.",
    )
    user_encoders: bool = Field(
        True,
        description="Whether administrators of tenants may add encoders of their own (ONNX); false: only the "
        "built-in ones.",
    )
    max_encoder_bytes: int = Field(
        120 * 1024**2, ge=1024, le=1024**3, description="Largest file of an own encoder, in bytes."
    )
    max_tenant_encoder_bytes: int = Field(
        512 * 1024**2, ge=0, description="Files of the own encoders of one tenant, in bytes."
    )
