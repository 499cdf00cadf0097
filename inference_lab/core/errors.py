"""The error answer: one value for everything a request can be refused for, and its JSON body."""

from __future__ import annotations

from typing import Final

import msgspec

from inference_lab.core.identity import TEST_ID_EXPECTED


class ApiError(Exception):
    """A refusal that the client sees as an HTTP status and an OpenAI-style error object.

    `status` is the HTTP status, `code` one of the codes in docs/wire.md, `param` the request field at
    fault; `headers` are extra response headers (lower-case names).
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status: Final = status
        self.code: Final = code
        self.message: Final = message
        self.param: Final = param
        self.headers: Final = headers

    def body(self) -> bytes:
        """The JSON body, keys in the order OpenAI sends them."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"  # OpenAI's split of `type`
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def bad_directive(message: str, *, param: str | None = "x-inference-lab-fault") -> ApiError:
    """400 for a fault that cannot be honoured as asked; `param` is where it stands, None in a model's file."""
    return ApiError(400, "invalid_fault_directive", message, param=param)


def invalid_request(message: str, param: str | None = None) -> ApiError:
    """400 for a request that is not of the documented shape."""
    return ApiError(400, "invalid_request", message, param=param)


def invalid_prompt(message: str) -> ApiError:
    """400 for a completions prompt that is missing, empty, of a wrong type, or a batch."""
    return ApiError(400, "invalid_prompt", message, param="prompt")


def body_too_large(limit_bytes: int) -> ApiError:
    """413 for a body over the limit."""
    return ApiError(413, "body_too_large", f"the request body is larger than {limit_bytes} bytes")


def bodies_too_large(limit_bytes: int) -> ApiError:
    """503 past `--max-bodies-bytes`; a second later others may have been answered."""
    message = (
        f"the bodies of all unanswered requests would be more than {limit_bytes} bytes (--max-bodies-bytes)"
    )
    return ApiError(503, "overloaded", message, headers=(("retry-after", "1"),))


def too_slow(what: str, limit_us: int) -> ApiError:
    """408 for a request that has not come in its time; `what` did not."""
    return ApiError(
        408, "request_timeout", f"{what} did not come within {limit_us / 1e6:g} s (--request-timeout-s)"
    )


def encoded_body(coding: str) -> ApiError:
    """415 for a body with a content coding: it is not even read."""
    shown = coding if len(coding) <= 60 else coding[:60] + "…"
    return ApiError(
        415,
        "unsupported_content_encoding",
        f"content-encoding is {shown!r}, and bodies are read as they are: send this one without a coding",
        headers=(("accept-encoding", "identity"),),
    )


def invalid_test_id(text: str) -> ApiError:
    """400 for an `x-test-id` that is none."""
    shown = text if len(text) <= 80 else text[:80] + "…"
    return ApiError(
        400, "invalid_test_id", f"x-test-id is {shown!r}, expected {TEST_ID_EXPECTED}", param="x-test-id"
    )


def attempts_unavailable(reason: str) -> ApiError:
    """503 where `times` cannot be counted: what the fault would do could not be told."""
    return ApiError(503, "attempts_unavailable", f"attempts cannot be counted: {reason}")


def metrics_unavailable(reason: str) -> ApiError:
    """503 where what shows them cannot be read; a second later there may be a descriptor for it."""
    message = f"the metrics cannot be shown: {reason}"
    return ApiError(503, "metrics_unavailable", message, headers=(("retry-after", "1"),))


def overloaded(limit: int) -> ApiError:
    """503 past `--max-streams`; a second later a seat may be free."""
    message = f"the server has {limit} open streams, as many as it takes (--max-streams)"
    return ApiError(503, "overloaded", message, headers=(("retry-after", "1"),))


def too_many_answers(count: int) -> ApiError:
    """503 where readers have left large answers lying; a second later some may have gone."""
    message = f"{count} large answers are under way, as many as are made at once"
    return ApiError(503, "too_many_answers", message, headers=(("retry-after", "1"),))


def draining(left_s: int) -> ApiError:
    """503 from SIGTERM on; `left_s` seconds later, at least 1, the server is gone and another may be there."""
    message = "the server is shutting down and takes no new requests"
    return ApiError(503, "draining", message, headers=(("retry-after", str(left_s)),))


def not_found(path: str) -> ApiError:
    """404 for a path that is no route."""
    return ApiError(404, "not_found", f"no such path: {path}")
