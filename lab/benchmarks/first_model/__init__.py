"""How long a person waits for the first model."""
