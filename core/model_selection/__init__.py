"""Choice of hyper-parameters by cross-validation: of the teacher once, then of each student."""
