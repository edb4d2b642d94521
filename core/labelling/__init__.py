"""The stage before training that gives labels to rows which have none."""
