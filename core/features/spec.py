"""The hyper-parameters of the feature map, in a module without the maps, which import SciPy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias, final

from core.data.column_layout import ColumnLayout
from core.data.scaling_kind import Scaling
from core.errors import Fault, InvalidProblem
from core.parameters import Doc, Ge, Gt, Le, check_parameters

FeatureKind: TypeAlias = Literal["linear", "kernel", "nystroem", "fourier", "auto"]
FeatureDtype: TypeAlias = Literal["float32", "float64"]

MAX_GAMMA = 1e12
MAX_KERNEL_ROWS = 5000


@final
@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """How raw rows become feature vectors φ(x). Raises InvalidProblem naming every wrong field.

    Users cannot set two of the fields. column_factors: positive factors of the scaled columns, (d,), for an
    RBF kernel; a search learns them (``model_selection.column_factors``). None: all are 1. layout: layout of
    encoded rows; only numbers are scaled, and terms stay linear beside any kernel of the other columns.
    """

    kind: Annotated[
        FeatureKind,
        Doc(
            "Linear features, or an RBF kernel: exact (at most 5000 rows), by Nyström or by random Fourier"
            " features. auto: linear for sparse or wide rows, exact for few rows, otherwise Nyström; of"
            " sparse rows without negative values, zscore becomes idf."
        ),
    ] = "linear"
    n_components: Annotated[
        int,
        Ge(1),
        Le(20_000),
        Doc("Landmarks (Nyström, at most so many) or frequencies (Fourier); linear and kernel ignore it."),
    ] = 500
    gamma: Annotated[
        float | None,
        Gt(0),
        Le(MAX_GAMMA),
        Doc("RBF width, exp(−γ‖x−x'‖²) on scaled data; null: from the data, 1/(d·variance)."),
    ] = None
    scaling: Annotated[
        Scaling, Doc("Scaling of the raw columns, learnt on the training part; idf is for terms of texts.")
    ] = Scaling.ZSCORE
    dtype: Annotated[FeatureDtype, Doc("Number format of the features in memory during training.")] = (
        "float64"
    )
    column_factors: tuple[float, ...] | None = None
    layout: ColumnLayout | None = None

    @property
    def has_terms(self) -> bool:
        """Whether the rows have terms of texts."""
        return self.layout is not None and self.layout.terms > 0

    def __post_init__(self) -> None:
        check_parameters(self, "features")
        object.__setattr__(self, "scaling", Scaling(self.scaling))
        if self.column_factors is not None:
            factors = tuple(float(factor) for factor in self.column_factors)
            if not all(0.0 < factor < float("inf") for factor in factors):
                message = "the factors of the columns must be positive and finite"
                raise InvalidProblem(Fault("features.column_factors", "out_of_bounds", message))
            object.__setattr__(self, "column_factors", factors)

    def as_dict(self) -> dict[str, Any]:
        """All fields except ``layout``, JSON-ready; ``column_factors`` only if there are any."""
        values = asdict(replace(self, layout=None))
        del values["layout"]
        factors = values.pop("column_factors")
        return values if factors is None else values | {"column_factors": list(factors)}

    def summary(self) -> dict[str, Any]:
        """Kind and scaling; if they apply also width, number of landmarks, learnt factors; JSON-ready."""
        values: dict[str, Any] = {"kind": self.kind, "scaling": str(self.scaling)}
        values |= {} if self.gamma is None else {"gamma": self.gamma}
        if self.column_factors is not None:
            values["column_factors"] = [float(f"{factor:.3g}") for factor in self.column_factors]
        return values | ({"n_components": self.n_components} if self.kind == "nystroem" else {})
