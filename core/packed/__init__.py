"""Packed students and teachers: everything that a query needs, and nothing that only training needs."""

from core.packed.calibration import (
    Calibration,
    IsotonicCalibration,
    ProbitCalibration,
    SigmoidCalibration,
)
from core.packed.forms import Form, GaussianForm, LinearForm, PolytopeForm
from core.packed.head import PackedHead
from core.packed.labels import PackedLabels
from core.packed.maps import FourierBasis, LinearBasis, PackedMap, RbfBasis
from core.packed.student import PackedStudent
from core.packed.teacher import PackedTeacher
from core.packed.trees import TreesBasis

__all__ = [
    "Calibration",
    "Form",
    "FourierBasis",
    "GaussianForm",
    "IsotonicCalibration",
    "LinearBasis",
    "LinearForm",
    "PackedHead",
    "PackedLabels",
    "PackedMap",
    "PackedStudent",
    "PackedTeacher",
    "PolytopeForm",
    "ProbitCalibration",
    "RbfBasis",
    "SigmoidCalibration",
    "TreesBasis",
]
