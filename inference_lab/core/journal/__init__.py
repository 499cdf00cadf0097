"""Core: what is kept of a request once it is over, and what can be asked of it."""
