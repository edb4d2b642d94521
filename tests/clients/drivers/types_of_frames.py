"""What becomes of frames of pandas and polars of every type of `tests/types_table.py`: driver ROOT."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])

from stms_client import InvalidInput, calls
from stms_client.tables import columns_of
from tests.types_table import NO, TYPES, Type
from tests.types_ways import asked_frame, frame_of, of_frame


def uploaded(one: Type, way: str) -> dict[str, Any]:
    try:
        call = calls.upload_table(frame_of(one, way), "label", "types", {})
    except InvalidInput as error:
        return {"error": str(error)}
    assert call.content is not None
    return {"format": call.params["format"], "content": base64.b64encode(call.content).decode()}


def questions(one: Type, way: str) -> dict[str, Any]:
    try:
        return columns_of(asked_frame(one, way))
    except InvalidInput as error:
        return {"error": str(error)}


found = []
for way in ("pandas", "polars"):
    for one in TYPES:
        if one.cell(way) != NO:
            taken = of_frame(asked_frame(one, way))
            entry = {"name": one.name, "way": way, "estimator": [taken.cell, taken.values, taken.message]}
            found.append(entry | {"upload": uploaded(one, way), "query": questions(one, way)})
print(json.dumps(found, default=str))
