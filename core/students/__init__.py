"""Students: binary classifiers of one class each, their specifications, and how they are fitted."""
