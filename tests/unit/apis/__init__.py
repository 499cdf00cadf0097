"""The APIs, each by itself."""
