"""Model servers of others, which jobs ask for scores: which are allowed, and how they are asked."""
