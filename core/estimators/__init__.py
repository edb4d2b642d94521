"""Scikit-learn estimators of the teacher and of the students."""

from core.estimators.classifiers import GatedSVMClassifier, STMSClassifier, StructuralSVMClassifier

__all__ = ["GatedSVMClassifier", "STMSClassifier", "StructuralSVMClassifier"]
