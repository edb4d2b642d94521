"""Asks and uploads rows of pandas: driver WHEEL ADDRESS KEY; prints what it found."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pandas as pd

wheel, address, key = sys.argv[1:]
sys.path.insert(0, wheel)

from stms_client import Client  # noqa: E402
from stms_client.arrays import archive  # noqa: E402

frame = pd.DataFrame({"a": [1, 0], "b": [0.0, 1.0], "c": [False, True]})
nullable = frame.astype({"a": "Int64", "b": "Float64", "c": "boolean"})
labels = pd.Series(["cat", "cat", None, "dog", "dog", "dog"], dtype="string")
six = pd.concat([frame, frame, frame])

with Client(address, key) as stms:
    found = {
        "frame": stms.query_rows("pets", "cat", frame).matches.tolist(),
        "nullable": stms.query_rows("pets", "cat", nullable).matches.tolist(),
        "float32": stms.query_rows("pets", "cat", frame.astype("float32")).scores.tolist(),
        "turned": stms.query_rows("pets", "cat", frame[["c", "a", "b"]]).matches.tolist(),
        "turned row": stms.is_class("pets", "cat", frame[["c", "a", "b"]].iloc[0]),
        "mapping": stms.is_class("pets", "cat", {"c": 0, "b": 0.0, "a": 1}),
        "row": stms.is_class("pets", "cat", frame.iloc[0]),
        "rows": stms.query_rows("pets", "cat", [frame.loc[0], frame.loc[1]]).matches,
        "uploaded": stms.upload_rows(six, labels, name="frame", unlabelled="accept")["rows"],
    }
    try:
        stms.query_rows("pets", "cat", frame.assign(c="text"))
    except ValueError as error:
        found["text"] = str(error)
with np.load(
    io.BytesIO(archive(pd.concat([nullable, nullable, nullable]), labels, None)), allow_pickle=False
) as file:
    found["names"] = file["feature_names"].tolist()
    found["labels"] = file["y"].tolist()
print(json.dumps(found))
