"""The stage before training that gives labels to rows without labels."""
