"""The columns of the rows of versions: reading, deciding, explaining and counting rows."""
