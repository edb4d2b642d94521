"""Scikit-learn estimators of the teacher and of the students."""

from core.estimators.classifiers import GatedSVMClassifier, STMSClassifier
from core.estimators.structural_svm import StructuralSVMClassifier

__all__ = ["GatedSVMClassifier", "STMSClassifier", "StructuralSVMClassifier"]
