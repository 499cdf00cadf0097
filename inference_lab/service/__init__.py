"""Shell: options judged, the parts put together, the process and its workers, the log."""
