"""`stms openapi`: the OpenAPI document of this release, from which clients can be generated."""

from __future__ import annotations

import json

import typer


def openapi() -> None:
    """Print the OpenAPI document of this release. A server returns the same at /openapi.json.

    Example:  stms openapi > openapi.json; openapi-python-client generate --path openapi.json
    """
    from app.main import create_app
    from app.settings import Settings

    typer.echo(json.dumps(create_app(Settings()).openapi(), indent=1, ensure_ascii=False))
