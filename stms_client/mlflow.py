"""MLflow flavor: a bundle as a model of MLflow, which its tools load, serve and register. Needs mlflow.

    stms_client.mlflow.log_model("letters.tar", name="letters")
    model = mlflow.pyfunc.load_model("models:/letters/1")
    model.predict(frame, params={"class": "A"})

The folder that it writes contains what the bundle names, and nothing that is pickled.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from mlflow import pyfunc
from mlflow.models import Model, ModelSignature
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec

from stms_client.arrays import numbers
from stms_client.bundle import Bundle, copy_bundle, open_bundle
from stms_client.errors import InvalidInput

FLAVOR: Final = "stms"
_DATA: Final = "bundle"
_CLASS: Final = "class"


def save_model(
    path: str | Path, bundle: str | Path, mlflow_model: Model | None = None, **options: Any
) -> None:
    """Write a bundle as a folder of MLflow.

    path: a folder that does not exist. bundle: a tar file or the folder that it was unpacked into. options:
    of `mlflow.models.Model`, such as metadata. Raises FileExistsError, and as `open_bundle`.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=False)
    copy_bundle(bundle, folder / _DATA)
    opened = open_bundle(folder / _DATA)
    model = mlflow_model or Model()
    for name, value in options.items():
        setattr(model, name, value)
    model.signature = _signature(opened)
    pyfunc.add_to_model(model, loader_module="stms_client.mlflow", data=_DATA)
    model.add_flavor(FLAVOR, data=_DATA, model=opened.model, version=opened.version)
    (folder / "requirements.txt").write_text("stms-client[mlflow]\n", "ascii")
    model.save(str(folder / MLMODEL_FILE_NAME))


def log_model(bundle: str | Path, name: str, **options: Any) -> Any:
    """Log a bundle as a model of the current run; returns what `mlflow.models.Model.log` does.

    options: of that function, such as registered_model_name.
    """
    return Model.log(
        artifact_path=None, name=name, flavor=sys.modules[__name__], bundle=str(bundle), **options
    )


def load_model(path: str | Path) -> Bundle:
    """The bundle in a folder of MLflow."""
    return open_bundle(Path(path) / _DATA)


def _load_pyfunc(path: str) -> _PyFunc:
    """Called by MLflow. path: of the unpacked bundle."""
    return _PyFunc(open_bundle(path))


class _PyFunc:
    """What MLflow asks for predictions."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """The decisions on rows: match, score, threshold, and of a calibrated student probability.

        data: (n, d), or a frame with the columns of the model. params: ``class``, the label to ask about; a
        bundle of a single class needs none.
        """
        label = (params or {}).get(_CLASS)
        if label in (None, "") and len(self._bundle.labels) == 1:
            label = self._bundle.labels[0]
        if label in (None, ""):
            raise InvalidInput(f'Name the class: params={{"{_CLASS}": "{self._bundle.labels[0]}"}}.')
        found = self._bundle.query_rows(label, self._rows(data))
        columns: dict[str, Any] = {
            "match": np.asarray(found.matches),
            "score": np.asarray(found.scores),
            "threshold": found.threshold,
        }
        if found.probabilities is not None:
            columns["probability"] = np.asarray(found.probabilities)
        return pd.DataFrame(columns)

    def _rows(self, data: Any) -> Any:
        """Rows as `Bundle.query_rows` takes them: records, or lists, whose answers have probabilities."""
        if not isinstance(data, pd.DataFrame):
            return numbers(data, 2).tolist()
        if self._bundle.takes_records:
            return data
        names = self._bundle.columns
        if names is not None and set(names) == set(data.columns):
            data = data[list(names)]
        return numbers(data, 2).tolist()


def _signature(bundle: Bundle) -> ModelSignature:
    """What the model takes and returns. Records are not described: their columns may be left out."""
    outputs = [
        ColSpec(DataType.boolean, "match"),
        ColSpec(DataType.double, "score"),
        ColSpec(DataType.double, "threshold"),
        ColSpec(DataType.double, "probability", required=False),
    ]
    default = bundle.labels[0] if len(bundle.labels) == 1 else None
    params = ParamSchema([ParamSpec(_CLASS, DataType.string, default or "")])
    inputs = None
    if not bundle.takes_records:
        inputs = Schema([TensorSpec(np.dtype(np.float64), (-1, bundle.width))])
    return ModelSignature(inputs=inputs, outputs=Schema(outputs), params=params)
