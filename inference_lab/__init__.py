"""inference-lab: an OpenAI-style server that dies on demand. It imports nothing: the build reads it."""

__version__ = "0.1.0"
