"""`POST /v1/embeddings`: OpenAI's shape, for gateways that probe it; the vectors mean nothing."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec
from twisted.internet.task import deferLater

from inference_lab.core.answer.embedding import DIMENSIONS, MOST_DIMENSIONS, packed_vector
from inference_lab.core.apis.request import Ids, read_body, show_number
from inference_lab.core.errors import ApiError, invalid_request
from inference_lab.core.tokens import encode

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from inference_lab.web.served import Served, ServedModels

MOST_INPUTS: Final = 2048
MOST_TOKENS: Final = 300_000
"""Of one request, as the API has them."""

_FORMATS: Final = ("float", "base64")
_TURN_FLOATS: Final = 4096
_VECTOR_FLOATS: Final = 100
"""So many floats are made before others get a turn, some milliseconds, a vector itself counted as so many."""
_EXPECTED: Final = "expected a string, ids, or a list of one of these"


class _Body(msgspec.Struct, frozen=True):
    """Unknown fields are accepted; null means absent."""

    model: str | None = None
    input: Any = None
    dimensions: int | None = None
    encoding_format: str | None = None


class Embeddings:
    """A request for embeddings, read and checked.

    Raises:
        ApiError: a body that is not of the documented shape, or past the API's limits; 404 for an unknown model.
    """

    def __init__(self, body: bytes, models: ServedModels) -> None:
        asked = read_body(body, _Body)
        if asked.model is None:
            raise invalid_request("model: missing", "model")
        self._format = _FORMATS[0] if asked.encoding_format is None else asked.encoding_format
        if self._format not in _FORMATS:
            raise invalid_request(
                f"encoding_format: is {self._format!r:.60}, expected {' or '.join(_FORMATS)}",
                "encoding_format",
            )
        self._dimensions = DIMENSIONS if asked.dimensions is None else asked.dimensions
        if not 1 <= self._dimensions <= MOST_DIMENSIONS:
            raise invalid_request(
                f"dimensions: is {show_number(self._dimensions)}, expected 1 to {MOST_DIMENSIONS}",
                "dimensions",
            )
        inputs = _inputs(asked.input)
        self._served = models.find(asked.model)
        self._ids = [encode(text) if isinstance(text, str) else text for text in inputs]
        self._tokens = _counted(self._ids, self._served)

    async def answer(self, clock: IReactorTime) -> dict[str, object]:
        """The JSON value of the answer; others get their turn in between."""
        data: list[dict[str, object]] = []
        every = max(1, _TURN_FLOATS // (self._dimensions + _VECTOR_FLOATS))
        for index, ids in enumerate(self._ids):
            if index and index % every == 0:
                await deferLater(clock, 0)
            packed = packed_vector(ids, self._dimensions)
            data.append({"object": "embedding", "index": index, "embedding": self._written(packed)})
        return {
            "object": "list",
            "data": data,
            "model": self._served.config.name,
            "usage": {"prompt_tokens": self._tokens, "total_tokens": self._tokens},
        }

    def _written(self, packed: bytes) -> msgspec.Raw:
        if self._format == "base64":
            return msgspec.Raw(msgspec.json.encode(base64.b64encode(packed).decode()))
        return msgspec.Raw(msgspec.json.encode(struct.unpack(f"<{self._dimensions}f", packed)))


def _inputs(given: Any) -> list[Any]:  # noqa: ANN401 - what JSON has
    """Each input as a text or as ids, none of them empty."""
    if given is None:
        raise invalid_request(f"input: missing, {_EXPECTED}", "input")
    is_one = isinstance(given, str) or (isinstance(given, list) and given and _is_id(given[0]))
    inputs = [given] if is_one else given
    if not isinstance(inputs, list):
        raise invalid_request(f"input: {_EXPECTED}", "input")
    if not inputs or "" in inputs or [] in inputs:
        raise invalid_request(f"input: empty, {_EXPECTED}", "input")
    if len(inputs) > MOST_INPUTS:
        raise invalid_request(f"input: {len(inputs)} inputs, expected at most {MOST_INPUTS}", "input")
    try:
        return msgspec.convert(inputs, list[str] if isinstance(inputs[0], str) else list[Ids])
    except msgspec.ValidationError:
        raise invalid_request(
            f"input: {_EXPECTED}; ids are integers from 0 to {2**32 - 1}", "input"
        ) from None


def _is_id(value: object) -> bool:
    return isinstance(value, (int, float))


def _counted(inputs: list[list[int]], served: Served) -> int:
    """The tokens of all inputs, within the limits."""
    limit = served.config.context_limit_tokens
    for index, ids in enumerate(inputs):
        if len(ids) > limit:
            message = f"input {index} has {len(ids)} tokens, and the context of {served.config.name} {limit}"
            raise ApiError(400, "context_length_exceeded", message, param="input")
    total = sum(map(len, inputs))
    if total > MOST_TOKENS:
        raise invalid_request(f"input: {total} tokens in all, expected at most {MOST_TOKENS}", "input")
    return total
