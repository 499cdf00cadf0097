"""What Python code imports of the oracle; see docs/verify.md."""

from inference_lab.core.oracle import verify

__all__ = ["verify"]
