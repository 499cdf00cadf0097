"""A lab for a test suite; see docs/testing.md. What needs Twisted is in `reactor` and `trial`."""

from inference_lab.testing.child import ServerError
from inference_lab.testing.current import CurrentTest
from inference_lab.testing.journal import Row
from inference_lab.testing.lab import InferenceLab
from inference_lab.testing.running import running_lab

__all__ = ["CurrentTest", "InferenceLab", "Row", "ServerError", "running_lab"]
