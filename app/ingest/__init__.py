"""Uploaded files to checked arrays. One module a format; `app.ingest.formats` chooses among them."""
