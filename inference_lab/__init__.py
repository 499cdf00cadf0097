"""inference-lab: an OpenAI-style server that dies on demand. Imports nothing, so that importing it costs nothing."""

__version__ = "0.1.0"
