"""Core: the simulated inference engine."""
