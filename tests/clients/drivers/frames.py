"""Asks and uploads frames of pandas, Polars and Arrow: driver WHEEL ADDRESS KEY; prints what it found."""

from __future__ import annotations

import json
import sys
from datetime import date

import pandas as pd
import polars as pl
import pyarrow as pa

wheel, address, key = sys.argv[1:]
sys.path.insert(0, wheel)

from stms_client import Client  # noqa: E402

COLUMNS = {
    "member": [True, False, True],
    "age": [39.5, None, 40.0],
    "hours": [40, 41, 42],
    "job": ["clerk", None, "diver"],
    "grade": [3, 1, 2],
    "since": [date(2021, 5, 6), date(2021, 5, 7), date(2022, 1, 1)],
    "place": [[0.5, -1.0], [0.0, 1.0], [1.0, 1.0]],
    "kind": ["a", "b", "a"],
}
pandas = pd.DataFrame(COLUMNS)
moments = pandas.assign(since=pd.to_datetime(pandas["since"]), job=pandas["job"].astype("category"))
frames = {
    "mapping": COLUMNS,
    "pandas": pandas,
    "moments": moments,
    "nullable": pandas.convert_dtypes(),
    "polars": pl.DataFrame(COLUMNS),
    "categories": pl.DataFrame(COLUMNS).with_columns(pl.col("job").cast(pl.Categorical)),
    "arrow": pa.table(COLUMNS),
}

with Client(address, key) as stms:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    one = [stms.query("people", "a", row).score for row in rows]
    found = {
        "records": stms.query_rows("people", "a", rows).scores == one,
        "series": [stms.query("people", "a", moments.iloc[k]).score for k in range(3)] == one,
        "frames": {
            name: stms.query_rows("people", "a", frame).scores.tolist() == one
            for name, frame in frames.items()
        },
        "unseen": [row.unseen for row in stms.query_rows("people", "a", frames["polars"], explain=True)],
        "schemas": {},
    }
    many = {
        "mapping": {column: values * 10 for column, values in COLUMNS.items()},
        "pandas": pd.concat([pandas] * 10),
        "moments": pd.concat([moments] * 10),
        "polars": pl.concat([frames["polars"]] * 10),
        "categories": pl.concat([frames["categories"]] * 10),
        "arrow": pa.concat_tables([frames["arrow"]] * 10),
    }
    for name, frame in many.items():
        data = stms.upload_table(frame, label="kind", name=name)
        found["schemas"][name] = {column["name"]: column["kind"] for column in data["summary"]["schema"]}
print(json.dumps(found))
