"""The description of uploads: files of data sets and of heads, as they are or in a form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from app.domain.names import DISPLAY_NAME, MAX_DISPLAY_NAME

Json = dict[str, Any]

MEDIA_TYPES: Final = {
    "text/csv": "csv",
    "text/tab-separated-values": "csv",
    "application/x-svmlight": "svmlight",
    "application/x-npz": "npz",
    "application/vnd.apache.parquet": "parquet",
}
"""Content types that say what a data set's file is."""

_ANY: Final = "application/octet-stream"
_FILE: Final[Json] = {"type": "string", "format": "binary"}

NAME_OR_EMPTY: Final[Json] = {"pattern": f"^$|{DISPLAY_NAME}", "maxLength": MAX_DISPLAY_NAME}
"""What a data set may be called; empty: after its file."""
FORMAT: Final[Json] = {"pattern": "^(csv|svmlight|npz|npy|parquet)?$"}
LABEL_COLUMN: Final[Json] = {"maxLength": 400}

_CSV_EXAMPLE: Final = (
    "sepal,petal,species\n5.1,1.4,setosa\n7.0,4.7,versicolor\n4.9,1.4,setosa\n6.4,4.5,versicolor\n"
)
_SVMLIGHT_EXAMPLE: Final = "+1 1:5.1 2:1.4\n-1 1:7.0 2:4.7\n+1 1:4.9 2:1.4\n-1 1:6.4 2:4.5\n"
_EXAMPLES: Final = {"text/csv": _CSV_EXAMPLE, "application/x-svmlight": _SVMLIGHT_EXAMPLE}


def _file(media_type: str) -> Json:
    content: Json = {"schema": {**_FILE, "contentMediaType": media_type}}
    if media_type in _EXAMPLES:
        content["example"] = _EXAMPLES[media_type]
    return content


def _form(media_types: Iterable[str], fields: Json) -> Json:
    """A form with one file, of one of these content types."""
    return {
        "schema": {"type": "object", "required": ["file"], "properties": {"file": _FILE, **fields}},
        "encoding": {"file": {"contentType": ", ".join(media_types)}},
    }


def _body(media_types: Iterable[str], fields: Json) -> Json:
    types = list(media_types)
    content = {media_type: _file(media_type) for media_type in [*types, _ANY]}
    return {"required": True, "content": {**content, "multipart/form-data": _form(types, fields)}}


DATASET: Final = _body(
    MEDIA_TYPES,
    {
        "name": {"type": "string", **NAME_OR_EMPTY},
        "format": {"type": "string", **FORMAT},
        "label_column": {"type": "string", **LABEL_COLUMN},
    },
)
HEAD: Final = _body(["application/x-safetensors", "application/x-npz"], {})
