"""Core: chat templates and raw markup, one module per format."""
