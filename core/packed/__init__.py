"""Packed students and teachers: what a query needs, and nothing of what training needs."""

from core.packed.calibration import Calibration, IsotonicCalibration, SigmoidCalibration
from core.packed.head import PackedHead
from core.packed.labels import PackedLabels
from core.packed.maps import FourierBasis, LinearBasis, PackedMap, RbfBasis
from core.packed.student import PackedStudent
from core.packed.teacher import PackedTeacher

__all__ = [
    "Calibration",
    "FourierBasis",
    "IsotonicCalibration",
    "LinearBasis",
    "PackedHead",
    "PackedLabels",
    "PackedMap",
    "PackedStudent",
    "PackedTeacher",
    "RbfBasis",
    "SigmoidCalibration",
]
