"""The teachers, students and labellers there are, by name.

A new one is added here, or from outside with ``STUDENTS.register`` and the like.
"""

from __future__ import annotations

from core.labelling.base import LabellerSpec
from core.labelling.odmc import ODMC
from core.labelling.ssodm import SsODM
from core.registry import Registry
from core.students.auto import Auto
from core.students.automatic import Automatic
from core.students.base import StudentSpec
from core.students.compact import Compact
from core.students.gated import GSVM, GSVM0, SVM
from core.students.gaussian import GPC, GPCPlus
from core.students.multiview import MultiView
from core.students.odm import ODM
from core.students.polytope import Polytope
from core.students.rivals import Rivals
from core.students.svm_plus import SVMPlus
from core.students.trees import Trees
from core.teachers.base import TeacherSpec
from core.teachers.boosting import Boosting
from core.teachers.forest import Forest
from core.teachers.interpolation import KernelInterpolation
from core.teachers.mcodm import McODM
from core.teachers.outside import OutsideScores
from core.teachers.ssvm import SSVM

TEACHERS: Registry[TeacherSpec] = Registry(
    "teacher", SSVM, McODM, KernelInterpolation, Forest, Boosting, OutsideScores
)
STUDENTS: Registry[StudentSpec] = Registry(
    "student",
    GSVM,
    GSVM0,
    SVM,
    Compact,
    Polytope,
    ODM,
    GPC,
    GPCPlus,
    SVMPlus,
    MultiView,
    Trees,
    Rivals,
    Auto,
    Automatic,
)
LABELLERS: Registry[LabellerSpec] = Registry("labelling", SsODM, ODMC)
