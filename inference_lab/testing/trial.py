"""A lab for each test of a trial `TestCase`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from inference_lab.testing.lab import CurrentTest
from inference_lab.testing.reactor import ReactorLab

if TYPE_CHECKING:
    from twisted.trial.unittest import TestCase as _TestCase
else:
    _TestCase = object  # the class beside this one brings it


class InferenceLabMixin(_TestCase):
    """Before `TestCase` among the bases: `self.inference_lab` is there in each test, and gone after it.

    `inference_lab_options` are those of `inference-lab serve`. A class with a `setUp` of its own calls this one.
    """

    inference_lab_options: ClassVar[tuple[str, ...]] = ()
    inference_lab: ReactorLab

    def setUp(self) -> Any:  # noqa: ANN401, N802 - whatever the TestCase answers, and unittest's name
        """Start the lab."""
        from twisted.internet import reactor  # noqa: PLC0415 - trial has installed it by now

        current = CurrentTest()
        current.begin(self.id())
        self.inference_lab = ReactorLab(reactor, *self.inference_lab_options, current=current)
        self.addCleanup(self.inference_lab.close)
        return super().setUp()
