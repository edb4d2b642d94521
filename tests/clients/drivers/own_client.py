"""Uses the installed client beside packages of the user: driver FOLDER ADDRESS KEY; prints what it found."""

from __future__ import annotations

import asyncio
import json
import sys

folder, address, key = sys.argv[1:]
sys.path.insert(0, folder)

import app  # noqa: E402
import core  # noqa: E402
import stms_client  # noqa: E402
from stms_client import AsyncClient, Client, Curve, MissingPackage, plots  # noqa: E402


async def ask() -> list[bool]:
    async with AsyncClient(address, key) as stms:
        asked = (stms.is_class("pets", "cat", row) for row in ([1, 0, 0], [0, 1, 0]))
        return list(await asyncio.gather(*asked))


with Client(address, key) as stms:
    found = {
        "is_class": stms.is_class("pets@latest", "cat", [1, 0, 0]),
        "matches": stms.query_rows("pets", "cat", [[1, 0, 0], [0, 1, 0]]).matches,
        "several": {
            label: d.match for label, d in stms.query_classes("pets", ["cat", "dog"], [1, 0, 0]).items()
        },
        "scopes": stms.whoami()["scopes"],
    }
try:
    plots.roc(Curve("cat", "svm", 1, 1, [0.0], [1], [0]))
    missing = "nothing"
except MissingPackage as error:
    missing = str(error)
found |= {
    "asynchronous": asyncio.run(ask()),
    "owners": [app.OWNER, core.OWNER],
    "file": stms_client.__file__,
    "optional": [name for name in ("numpy", "pandas", "matplotlib") if name in sys.modules],
    "missing": missing,
}
print(json.dumps(found))
