"""What versions know of the columns of their rows: reading, deciding, explaining and counting rows."""
