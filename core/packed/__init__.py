"""Packed students and teachers: what a query needs, and nothing of what training needs."""

from core.packed.maps import FourierBasis, LinearBasis, PackedMap, RbfBasis
from core.packed.student import PackedStudent
from core.packed.teacher import PackedTeacher

__all__ = ["FourierBasis", "LinearBasis", "PackedMap", "PackedStudent", "PackedTeacher", "RbfBasis"]
