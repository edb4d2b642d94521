"""Reads uploaded files into validated arrays: one module per format, selected by `app.ingest.formats`."""
