"""Core: tell from a received stream alone whether a gateway's client got the right answer."""

from inference_lab.oracle.judge import Ended, verify
from inference_lab.oracle.verdict import Finding, Kind, Note, Outcome, Verdict

__all__ = ["Ended", "Finding", "Kind", "Note", "Outcome", "Verdict", "verify"]
