"""`stms demo`: the main job on real data, from a file to an answer, on processes of its own."""

from __future__ import annotations

from app.commands.demo.run import demo

__all__ = ["demo"]
