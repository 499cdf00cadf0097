"""Shell: what outlives a request, in SQLite."""
