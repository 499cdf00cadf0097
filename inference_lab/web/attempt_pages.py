"""`DELETE /lab/attempts`: counts are forgotten by what they belong to, and all of them only when that is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inference_lab.web.decide import counting
from inference_lab.web.query import to_remove

if TYPE_CHECKING:
    from inference_lab.storage.attempts import Attempts
    from inference_lab.wire.request import LabRequest

_FILTERS: Final = ("test", "prompt", "all")


def forget_attempts(request: LabRequest, attempts: Attempts) -> object:
    """Forget what the query names.

    Raises:
        ApiError: 400 for a query that names nothing, or something else; 503 where nothing can be forgotten.
    """
    wanted = to_remove(request, "forget all attempts", _FILTERS)
    with counting():
        return {"deleted": attempts.delete(test=wanted.test, prompt=wanted.prompt)}
