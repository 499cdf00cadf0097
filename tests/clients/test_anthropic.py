"""Anthropic's SDK against the deaths of a message: what it takes for an answer, read raw and by its helper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anthropic
import httpx2
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.clients

ASKED: Final[dict[str, Any]] = {
    "model": "lab",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "hello"}],
}


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="none", base_url=url, max_retries=0, timeout=1) as made:
        yield made


def raw(client: anthropic.Anthropic, fault: str) -> tuple[str, ...]:
    """The last event's type and all text, where the stream ends."""
    texts, last = [], ""
    for event in client.messages.create(stream=True, extra_headers={"x-inference-lab-fault": fault}, **ASKED):
        last = event.type
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            texts.append(event.delta.text)
    return last, "".join(texts)


def helper(client: anthropic.Anthropic, fault: str) -> tuple[str | None, int, str]:
    """Why the final message stopped, its output tokens and its text."""
    with client.messages.stream(extra_headers={"x-inference-lab-fault": fault}, **ASKED) as stream:
        message = stream.get_final_message()
    text = "".join(block.text for block in message.content if block.type == "text")
    return message.stop_reason, message.usage.output_tokens, text


WORDS: Final = " ".join(f"%s{number:04d}" for number in range(3))
ENDS: Final = {
    "ok;after_chunks=3": ("message_stop", ("end_turn", 3)),
    "fake_stop": ("message_stop", ("end_turn", 3)),
    "no_done": ("message_delta", ("end_turn", 3)),
    # A broken answer that passes for a good one: no reason, and the count that counts nothing.
    "clean_eof": ("content_block_delta", (None, 1)),
    "done_without_finish": ("message_stop", (None, 1)),
}


@pytest.mark.parametrize("fault", ENDS)
def test_what_ends_cleanly_is_a_message(client: anthropic.Anthropic, fault: str) -> None:
    last, (reason, tokens) = ENDS[fault]
    seen = raw(client, fault)
    tag = seen[1][:2]
    text = WORDS.replace("%s", tag)
    assert seen == (last, text)
    assert helper(client, fault) == (reason, tokens, text)


RAISES: Final = {
    "cut_between_frames": httpx2.RemoteProtocolError,
    "cut_mid_frame": httpx2.RemoteProtocolError,
    "mid_reasoning": httpx2.RemoteProtocolError,
    "mid_tool_call": httpx2.RemoteProtocolError,
    "reset": httpx2.ReadError,
    "stall": httpx2.ReadTimeout,
    "error_envelope_200": anthropic.APIStatusError,
    "error_400_in_sse": anthropic.APIStatusError,
    "cancelled_499": anthropic.APIStatusError,
    "first_frame_error": anthropic.APIStatusError,
    "overloaded_429": anthropic.RateLimitError,
    "ok;status=529": anthropic.APIStatusError,
}


@pytest.mark.parametrize("read", [raw, helper])
@pytest.mark.parametrize("fault", RAISES)
def test_a_death_is_raised(
    client: anthropic.Anthropic, read: Callable[[anthropic.Anthropic, str], Any], fault: str
) -> None:
    with pytest.raises(RAISES[fault]):
        read(client, fault)


def test_an_error_event_has_its_own_type_and_the_status_of_its_response(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.APIStatusError) as raised:
        raw(client, "error_envelope_200")
    assert raised.value.status_code == 200
    assert "Provider returned error" in str(raised.value)


def test_without_usage_the_helper_fails_and_the_raw_stream_does_not(client: anthropic.Anthropic) -> None:
    assert raw(client, "no_usage")[0] == "message_stop"
    with pytest.raises(AttributeError):
        helper(client, "no_usage")


def test_answers_that_are_not_streamed_and_counts_are_what_the_sdk_expects(
    client: anthropic.Anthropic,
) -> None:
    message = client.messages.create(**ASKED)
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "max_tokens")
    assert message.usage.output_tokens == 16
    counted = client.messages.count_tokens(model="lab", messages=ASKED["messages"])
    assert counted.input_tokens == message.usage.input_tokens
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**ASKED | {"model": "nobody"})
