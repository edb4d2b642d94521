"""STMS: is this the target class?

    from stms import Client, STMSClassifier

The public names of `core` and of `stms_client` under one import name; each is loaded when it is first used.
In an installed distribution `app`, `core` and `migrations` are parts of this package, so that a project may
have packages of these names; in a clone of the repository they stand beside it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if not name.startswith("_"):
        import core as learners
        import stms_client as client

        for package in (learners, client):
            if name in package.__all__:
                return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    import core as learners
    import stms_client as client

    return sorted({*learners.__all__, *client.__all__})
