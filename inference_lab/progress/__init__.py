"""Core: how much of its answer a prompt already holds: where it stands, and which leg it asks for."""
