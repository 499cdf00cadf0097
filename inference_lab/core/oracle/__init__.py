"""Core: tell from a received stream alone whether a gateway's client got the right answer."""

from inference_lab.core.oracle.judge import Ended, Usage, verify
from inference_lab.core.oracle.reader import Facts, Form, Reader, foreign
from inference_lab.core.oracle.verdict import Finding, Kind, Note, Outcome, Verdict, Weight, kinds_named

__all__ = [
    "Ended",
    "Facts",
    "Finding",
    "Form",
    "Kind",
    "Note",
    "Outcome",
    "Reader",
    "Usage",
    "Verdict",
    "Weight",
    "foreign",
    "kinds_named",
    "verify",
]
