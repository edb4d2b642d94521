"""Names of the measures, rules and strategies that a training run may ask for."""

from __future__ import annotations

from typing import Literal, TypeAlias

Metric: TypeAlias = Literal["f1", "accuracy", "auc"]
Strategy: TypeAlias = Literal["halving", "exhaustive"]
ThresholdRule: TypeAlias = Literal["zero", "accuracy", "f1", "expected_f1", "fpr"]
"""``"expected_f1"``: the largest F that a fitted sigmoid expects, which does not overfit few rows."""
CalibrationKind: TypeAlias = Literal["sigmoid", "isotonic"]
CalibrationRule: TypeAlias = Literal["none", "auto", "sigmoid", "isotonic"]
"""How to calibrate. ``"auto"``: a sigmoid, if held-out scores are computed for another reason."""
GuardRule: TypeAlias = Literal["repair", "check", "off"]
"""What to do about a student that is clearly worse than its teacher on held-out rows."""
Scope: TypeAlias = Literal["students", "job"]
"""What to search for: the students' points only, or features, teacher and students."""
