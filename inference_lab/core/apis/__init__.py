"""The APIs that are spoken: how each reads a request, and writes the frames of a stream."""
