"""Students: binary classifiers for one class each. ``fitting.fit_student`` fits the one that a spec names."""
