"""A lab for a test suite; see docs/testing.md. What needs Twisted is in `reactor` and `trial`."""

from inference_lab.testing.child import ServerError, running_lab
from inference_lab.testing.lab import CurrentTest, InferenceLab, Row

__all__ = ["CurrentTest", "InferenceLab", "Row", "ServerError", "running_lab"]
