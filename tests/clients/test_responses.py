"""OpenAI's SDK against the deaths of a response: what it takes for an answer, read raw and by its helper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.clients

ASKED: Final[dict[str, Any]] = {"model": "lab", "max_output_tokens": 16, "input": "hello"}


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=1) as made:
        yield made


def raw(client: openai.OpenAI, fault: str) -> tuple[str, str]:
    """The last event's type and all text, where the stream ends."""
    texts, last = [], ""
    for event in client.responses.create(
        stream=True, extra_headers={"x-inference-lab-fault": fault}, **ASKED
    ):
        last = event.type
        if event.type == "response.output_text.delta":
            texts.append(event.delta)
    return last, "".join(texts)


def helper(client: openai.OpenAI, fault: str) -> tuple[str | None, str]:
    """The final response's status and text."""
    with client.responses.stream(extra_headers={"x-inference-lab-fault": fault}, **ASKED) as stream:
        response = stream.get_final_response()
    return response.status, response.output_text


NO_END: Final = "Didn't receive a `response.completed` event."
ENDS: Final = {
    "ok;after_chunks=3": ("response.completed", None),
    "fake_stop": ("response.completed", None),
    "no_usage": ("response.completed", None),
    # A broken answer that ends without an error where it is read raw; the helper waits for the last event.
    "clean_eof": ("response.output_text.delta", NO_END),
    "no_done": ("response.output_item.done", NO_END),
    "error_400_in_sse": ("response.failed", NO_END),
    "cancelled_499": ("response.failed", NO_END),
    "abort_finish": ("response.abort", NO_END),
    "ok;after_chunks=3;finish=length": ("response.incomplete", NO_END),
    "done_without_finish": ("response.completed", "Cannot complete response with unfinished output items."),
}


@pytest.mark.parametrize("fault", ENDS)
def test_what_ends_cleanly_is_an_answer_where_it_is_read_raw(client: openai.OpenAI, fault: str) -> None:
    last, error = ENDS[fault]
    seen, text = raw(client, fault)
    assert seen == last
    assert [int(word[2:]) for word in text.split()] == [0, 1, 2]
    if error is None:
        assert helper(client, fault) == ("completed", text)
        return
    with pytest.raises(RuntimeError) as raised:
        helper(client, fault)
    assert str(raised.value) == error


RAISES: Final = {
    "cut_between_frames": openai.APIConnectionError,
    "cut_mid_frame": openai.APIConnectionError,
    "mid_reasoning": openai.APIConnectionError,
    "mid_tool_call": openai.APIConnectionError,
    "reset": openai.APIConnectionError,
    "stall": openai.APITimeoutError,
    "error_envelope_200": openai.APIError,
    "first_frame_error": openai.APIError,
    "overloaded_429": openai.RateLimitError,
}


@pytest.mark.parametrize("read", [raw, helper])
@pytest.mark.parametrize("fault", RAISES)
def test_a_death_is_raised(
    client: openai.OpenAI, read: Callable[[openai.OpenAI, str], Any], fault: str
) -> None:
    with pytest.raises(RAISES[fault]):
        read(client, fault)


def test_an_answer_that_is_not_streamed_is_what_the_sdk_expects(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASKED)
    assert (response.status, len(response.output_text.split())) == ("incomplete", 16)
    assert response.usage is not None
    assert response.usage.output_tokens == 16
    counted = client.responses.input_tokens.count(model="lab", input="hello")
    assert counted.input_tokens == response.usage.input_tokens
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**ASKED | {"previous_response_id": "resp_0"})
