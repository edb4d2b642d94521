"""How long a person waits for the first model, and what the service takes while nobody asks."""
