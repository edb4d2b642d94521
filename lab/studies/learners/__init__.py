"""The learners beside those of the first paper, each against baselines that we did not write."""
