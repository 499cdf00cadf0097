"""Core: the answer as words, pieces and frames of both endpoints, in every dialect."""
