"""Compact students as they are shipped: from a preparation and a budget to a PackedStudent.

    rows = CompactRows.of(preparation, data)                    # once for all classes
    compact = train_compact_student(rows, target, CompactSpec(relative_cost=0.1))

A budget is a number of landmarks, a cost relative to the teacher's, or a loss of F against the full student.
"""

from core.compact.budget import SIZES, SizeChoice, SizePoint, query_cost
from core.compact.rows import CompactRows
from core.compact.training import TrainedCompact, train_compact_student
from core.students.spec import CompactSpec

__all__ = [
    "SIZES",
    "CompactRows",
    "CompactSpec",
    "SizeChoice",
    "SizePoint",
    "TrainedCompact",
    "query_cost",
    "train_compact_student",
]
