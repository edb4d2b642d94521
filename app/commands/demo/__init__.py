"""`stms demo`: upload, training and queries on real data, with a temporary server."""

from __future__ import annotations

from app.commands.demo.run import demo

__all__ = ["demo"]
