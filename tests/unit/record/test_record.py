"""The recorder without a socket: what a capture keeps, what reaches the file, and that it replays as it was."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import pytest
import tomli
from hypothesis import example, given
from hypothesis import strategies as st

from inference_lab.commands.record.capture import Capture, End, Recorded, Step
from inference_lab.commands.record.command import main
from inference_lab.commands.record.masking import Mask
from inference_lab.commands.record.target import (
    has_short_secret,
    headers_of,
    request_bytes,
    secrets_of,
    shape_of,
    target_of,
)
from inference_lab.commands.record.writing import About, basic_string, incident_text, template_of
from inference_lab.config.incident_file import parse_incident
from inference_lab.console import UserError
from inference_lab.core.apis.contract import Completion
from inference_lab.core.faults.death import Close
from inference_lab.core.faults.incident import Incident, incident_script
from inference_lab.core.stream.chunks import Spelled, chunk, shown
from inference_lab.core.stream.events import Frame, Head, Pause

if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nDate: now\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
)
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
ABOUT = About("x", "/v1/chat/completions", "{}", ("a comment",))
COMPLETION = Completion("cmpl-own", 1, "own-model")


def captured(pieces: Iterable[bytes], end: End = End.FIN, *, max_bytes: int = 10**9) -> Recorded:
    """A capture of pieces that came a millisecond apart; it ended 5 ms after the last."""
    capture = Capture(max_bytes)
    at_ms = 0
    for piece in pieces:
        at_ms += 1
        capture.feed(piece, at_ms)
    return capture.ended(end, at_ms + 5)


def replayable(recorded: Recorded, *, placeholders: bool = False) -> Incident:
    template = template_of(recorded.steps) if placeholders else None
    return parse_incident(tomli.loads(incident_text(recorded, ABOUT, template)), Path("x.toml"))


def on_the_wire(incident: Incident) -> tuple[Head, bytes, Close]:
    """What a replay sends behind its head, and how it ends; the terminator is among the bytes."""
    head, data, close = Head(0, ()), b"", Close.FIN
    for event in shown(incident_script(incident, COMPLETION, (), delay_ms=None)):
        if isinstance(event, Head):
            head = event
        elif isinstance(event, Frame):
            data += chunk(event.data) if head.framing == "stream" else event.data
        elif isinstance(event, Spelled):
            data += event.data
        elif isinstance(event, Close):
            close = event
    return head, data + b"0\r\n\r\n" * (close is Close.TERMINATOR and head.framing == "stream"), close


def steps(recorded: Recorded) -> list[tuple[bytes, bool]]:
    return [(step.data, step.framed) for step in recorded.steps]


# -- taking a response apart


def test_each_chunk_is_a_frame_with_the_time_its_last_byte_came() -> None:
    recorded = captured([CHUNKED, b"3\r\none\r\n3\r\nt", b"w", b"o\r\n", b"0\r\n\r\n"], End.OPEN)
    assert recorded.steps == (Step(2, b"one"), Step(4, b"two"))
    assert (recorded.head_ms, recorded.tail_ms, recorded.close) == (1, 1, "terminator")


@pytest.mark.parametrize(
    ("body", "end", "kept", "close"),
    [
        (b"3\r\none\r\n", End.FIN, [(b"one", True)], "fin"),
        (b"3\r\none\r\n", End.RST, [(b"one", True)], "rst"),
        (b"3\r\none\r\n", End.OPEN, [(b"one", True)], "hang"),
        (b"3\r\none\r\n0\r\n\r\n", End.FIN, [(b"one", True)], "idle_close"),
        (b"3\r\none\r\n0\r\n\r\n", End.RST, [(b"one", True)], "terminator_rst"),
        (b"3\r\none\r\n0\r\n", End.FIN, [(b"one", True), (b"0\r\n", False)], "fin"),
        (b"3\r\non", End.RST, [(b"3\r\non", False)], "rst"),
        (b"3", End.OPEN, [(b"3", False)], "hang"),
        (b"zz\r\n", End.FIN, [(b"zz\r\n", False)], "fin"),
        (b"3\r\noneXX3\r\ntwo\r\n", End.FIN, [(b"3\r\noneXX3\r\ntwo\r\n", False)], "fin"),
        (b"003\r\none\r\n0\r\n\r\n", End.OPEN, [(b"003\r\none\r\n", False)], "terminator"),
        (b"A;x=1\r\n0123456789\r\n", End.FIN, [(b"A;x=1\r\n0123456789\r\n", False)], "fin"),
        (b"0\r\na: b\r\n\r\n", End.OPEN, [(b"0\r\na: b\r\n\r\n", False)], "hang"),
        (b"00\r\n\r\n", End.FIN, [(b"00\r\n\r\n", False)], "fin"),
        (b"0\r\n\r\nmore", End.FIN, [(b"0\r\n\r\n", False), (b"more", False)], "fin"),
    ],
)
def test_what_is_no_plain_chunk_is_kept_as_its_bytes(
    body: bytes, end: End, kept: list[tuple[bytes, bool]], close: str
) -> None:
    recorded = captured([CHUNKED + body], end)
    assert (steps(recorded), recorded.close) == (kept, close)


@pytest.mark.parametrize(
    ("head", "body", "end", "expected"),
    [
        (LENGTH % 3, b"one", End.OPEN, ("length", 0, "terminator")),
        (LENGTH % 3, b"one", End.FIN, ("length", 0, "idle_close")),
        (LENGTH % 5, b"one", End.FIN, ("length", 2, "fin")),
        (LENGTH % 1, b"one", End.FIN, ("length", -2, "idle_close")),
        (LENGTH % 0, b"", End.OPEN, ("length", 0, "terminator")),
        (
            CHUNKED.replace(b"Date: now", b"Content-Length: 9"),
            b"3\r\none\r\n0\r\n\r\n",
            End.OPEN,
            ("both", 6, "terminator"),
        ),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"one", End.FIN, ("none", 0, "fin")),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"one", End.RST, ("none", 0, "rst")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", End.OPEN, ("none", 0, "terminator")),
    ],
)
def test_the_head_says_how_the_body_is_framed(
    head: bytes, body: bytes, end: End, expected: tuple[str, int, str]
) -> None:
    recorded = captured([head, body] if body else [head], end)
    assert (recorded.framing, recorded.length_off_by, recorded.close) == expected
    assert replayable(recorded).close == recorded.close


def test_interim_responses_are_passed_over() -> None:
    recorded = captured([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 X\r\n\r", b"\n" + CHUNKED])
    assert (recorded.status, recorded.head_ms) == (200, 2)


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-x\r\n", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"HTTP/1." + b"x" * 70_000],
)
def test_what_is_no_response_is_refused(data: bytes) -> None:
    with pytest.raises(UserError, match=r"what came is no (final )?HTTP/1 response"):
        captured([data])


@pytest.mark.parametrize(("end", "close"), [(End.FIN, "fin"), (End.RST, "rst"), (End.OPEN, "hang")])
def test_a_death_before_the_head_has_a_mode_already(end: End, close: str) -> None:
    with pytest.raises(
        UserError, match=f"after 4 bytes of a head; to replay that, use ok;at=request;close={close}"
    ):
        captured([b"HTTP"], end)


def test_a_body_is_kept_up_to_the_limit_and_a_chunk_past_it_not_at_all() -> None:
    recorded = captured([CHUNKED, b"3\r\none\r\n", b"3\r\ntwo\r\n"], End.FULL, max_bytes=10)
    assert (steps(recorded), recorded.close, recorded.body_bytes) == ([(b"one", True)], "hang", 10)


BODIES = st.lists(
    st.binary(max_size=6)
    | st.binary(min_size=1, max_size=20).map(lambda data: b"%x\r\n%b\r\n" % (len(data), data))
    | st.binary(min_size=1, max_size=20).map(lambda data: b"%X\r\n%b\r\n" % (len(data), data))
    | st.sampled_from(
        [
            b"0\r\n\r\n",
            b"0\r\n",
            b"\r\n",
            b"0\r\na: b\r\n\r\n",
            b"3;x\r\none\r\n",
            "é\n'''\"\\<<id>>".encode(),
        ]
    ),
    max_size=6,
).map(b"".join)
HEADS = st.sampled_from(
    [CHUNKED, LENGTH % 7, b"HTTP/1.1 200 OK\r\n\r\n", CHUNKED.replace(b"now", b"x\r\ncontent-length: 4")]
)


@given(
    HEADS, BODIES, st.lists(st.integers(0, 200), max_size=5), st.sampled_from([End.FIN, End.RST, End.OPEN])
)
@example(CHUNKED, b"0\r\n\r\n", [0], End.RST)
def test_whatever_was_captured_replays_byte_for_byte_with_its_ending(
    head: bytes, body: bytes, cuts: list[int], end: End
) -> None:
    data = head + body
    places = sorted({len(head), *(len(head) + cut for cut in cuts if cut < len(body))})
    pieces = [data[begin:stop] for begin, stop in zip([0, *places], [*places, len(data)], strict=True)]
    recorded = captured([piece for piece in pieces if piece], end)
    sent, replayed, close = on_the_wire(replayable(recorded))
    assert replayed == body
    if b"ength: " in head:
        assert sent.content_length == int(head.lower().partition(b"length: ")[2].partition(b"\r")[0])
    # A FIN behind a whole response is an idle connection that was closed.
    whole_then_fin = close is Close.TERMINATOR and sent.idle_ms is not None
    expected = {
        End.FIN: {Close.FIN},
        End.RST: {Close.RST, Close.TERMINATOR_RST},
        End.OPEN: {Close.HANG, Close.TERMINATOR},
    }
    assert close in expected[end] or (end is End.FIN and whole_then_fin)


# -- what reaches the file


def test_pauses_lie_between_the_pieces() -> None:
    recorded = captured([CHUNKED, b"3\r\none\r\n", b"3\r\nt", b"wo\r\n3\r\nend\r\n"])
    pauses = [step for step in replayable(recorded).steps if isinstance(step, Pause)]
    assert pauses == [Pause(1), Pause(2), Pause(5)]


def test_of_the_head_only_what_is_on_the_list_is_written() -> None:
    head = (
        b"HTTP/1.1 429 Nope\r\nSet-Cookie: session=abcdefgh\r\nX-Request-Id: r1\r\nServer: s\r\nVia: v\r\n"
        b"Content-Type: a/b\r\nCache-Control: no\x01store\r\nRetry-After: 3\r\nConnection: close\r\n"
        b"Content-Encoding: br\r\nContent-Length: 0\r\n\r\n"
    )
    text = incident_text(captured([head], End.FIN), ABOUT, None)
    assert tomli.loads(text)["head"] == {
        "status": 429,
        "framing": "length",
        "pause_ms": 1,
        "headers": {
            "content-type": "a/b",
            "cache-control": "no?store",
            "content-encoding": "br",
            "connection": "close",
            "retry-after": "3",
        },
    }
    assert not [word for word in ("session", "r1", "Nope", "Date", "Via") if word in text]


def test_text_is_written_as_lines_and_bytes_as_base64() -> None:
    recorded = captured(
        [
            CHUNKED
            + b"".join(
                b"%x\r\n%b\r\n" % (len(data), data)
                for data in (
                    "data: é\n\n".encode(),
                    b"a\xc3",
                    b"\x1f\x8b",
                    b"it's '''\n",
                    b"a\r\n",
                    b"no line's",
                )
            )
        ]
    )
    text = incident_text(recorded, ABOUT, None)
    assert "frame = '''\ndata: é\n\n'''\n" in text
    assert 'frame = ["a", { base64 = "ww==" }]\n' in text
    assert 'frame = ["\\u001f", { base64 = "iw==" }]\n' in text
    assert "frame = \"it's '''\\n\"\n" in text
    assert 'frame = "a\\r\\n"\n' in text


@given(st.text())
def test_any_text_is_one_toml_string(text: str) -> None:
    assert tomli.loads(f"x = {basic_string(text.encode('utf-8', 'replace').decode())}") == {
        "x": text.encode("utf-8", "replace").decode()
    }


def test_placeholders_stand_where_id_and_model_stood_and_nothing_else_becomes_one() -> None:
    frame = b'data: {"id": "chatcmpl-1", "model":"m\\"1", "text":"<<id>> chatcmpl-1 m <<"}\n\n'
    recorded = captured([CHUNKED + b"%x\r\n%b\r\n" % (len(frame), frame)])
    _, replayed, _ = on_the_wire(replayable(recorded, placeholders=True))
    own = frame.replace(b'"chatcmpl-1"', b'"cmpl-own"').replace(b'"m\\"1"', b'"own-model"')
    assert replayed == b"%x\r\n%b\r\n" % (len(own), own)


@pytest.mark.parametrize("data", [b"data: [DONE]\n\n", b'\xff{"id":"x","model":"y"}', b'{"id":""}'])
def test_a_response_without_id_and_model_has_no_placeholders(data: bytes) -> None:
    assert template_of([Step(0, data)]) is None


def test_a_secret_is_hidden_even_where_it_is_cut_over_several_pieces() -> None:
    pieces = [Step(0, b"key sk-12"), Step(1, b"345678 and sk-12345678"), Step(2, b"!")]
    recorded = msgspec.structs.replace(captured([CHUNKED]), steps=tuple(pieces))
    mask = Mask({b"sk-12345678"})
    hidden = mask.of(recorded)
    assert [step.data for step in hidden.steps] == [b"key xxxxx", b"xxxxxx and xxxxxxxxxxx", b"!"]
    assert (mask.in_head, mask.in_body) == (0, 2)


KEY = "sk-ab/cd+ef=ghij0123456é"
DRESSES = {
    "plain": KEY,
    "JSON": json.dumps(KEY),
    "JSON in PHP's way": json.dumps(KEY).replace("/", "\\/"),
    "JSON, every character escaped": "".join(f"\\u{ord(char):04X}" for char in KEY),
    "JSON in JSON": json.dumps(json.dumps(KEY).replace("/", "\\/")),
    "percent-encoded": quote(KEY, safe=""),
    "percent-encoded in small letters": quote(KEY, safe="").lower(),
    "percent-encoded twice": quote(quote(KEY, safe=""), safe=""),
    "percent-encoded four times": quote(quote(quote(quote(KEY, safe=""), safe=""), safe=""), safe=""),
    "percent-encoded, every byte": "".join(f"%{byte:02x}" for byte in KEY.encode()),
    "large letters": KEY.upper(),
    "hex": KEY.encode().hex(),
    "hex in large letters, apart": KEY.encode().hex(":").upper(),
    "a string of C": "".join(f"\\x{byte:02x}" for byte in KEY.encode()),
    "a string of JavaScript": "".join(f"\\u{{{ord(char):x}}}" for char in KEY),
    "HTML by names": KEY.replace("/", "&sol;").replace("+", "&plus;").replace("=", "&equals;"),
    "HTML without semicolons": "".join(f"&#{ord(char)}" for char in KEY),
    "base64 in lines": "\\n".join(re.findall(".{1,9}", b64encode(KEY.encode()).decode())),
    "HTML": KEY.replace("/", "&#x2F;").replace("+", "&#43;"),
    "base64": b64encode(KEY.encode()).decode(),
    "base64 for URLs": urlsafe_b64encode(KEY.encode()).decode(),
    "base64 of more": b64encode(f"Bearer {KEY}\n".encode()).decode(),
    "base64 of still more": b64encode(f"user:{KEY} ".encode()).decode(),
    "base64 in JSON in PHP's way": b64encode(f"u:{KEY}".encode()).decode().replace("/", "\\/"),
}


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
def test_a_secret_is_hidden_in_every_dress_in_head_and_body(dress: str) -> None:
    body = f"before {dress} behind".encode()
    head = LENGTH.replace(b"\r\n\r\n", b"\r\nCache-Control: a; key=%b\r\n\r\n") % (len(body), dress.encode())
    mask = Mask({KEY.encode()})
    hidden = mask.of(captured([head + body]))
    for text in (hidden.steps[0].data.decode(), dict(hidden.headers)["cache-control"]):
        # Of base64 the first character may tell two bits of the secret's first letter.
        assert re.search(r"x{20}", text)
        assert not re.search(r"abcd|cd|hij|012|g.h.i|Yi9jZ|MDEyM|ZGVm|Z2hpa", text, re.IGNORECASE)
    assert hidden.steps[0].data.startswith(b"before ")
    assert hidden.steps[0].data.endswith(b" behind")
    assert (mask.in_head, mask.in_body) == (1, 1)


@given(st.text(min_size=8, max_size=30), st.binary(max_size=4), st.binary(max_size=4))
def test_no_base64_around_a_secret_tells_it(secret: str, before: bytes, behind: bytes) -> None:
    whole = b64encode(before + secret.encode() + behind)
    step = Step(0, whole)
    Mask({secret.encode()}).of(msgspec.structs.replace(captured([CHUNKED]), steps=(step,)))
    kept = len(step.data) - step.data.count(b"x")
    # The characters that are all its own are hidden; those beside, which it shares, hold a few bits of it.
    assert kept <= (len(before) + len(behind)) * 4 // 3 + 8


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("written", [KEY, KEY.encode().hex()], ids=["plain", "hex"])
def test_a_secret_that_frames_spell_is_hidden_and_the_frames_stay(written: str, size: int) -> None:
    pieces = ["It is ", *(written[at : at + size] for at in range(0, len(written), size)), " so"]
    frames = [f'data: {{"id":"c-1","delta":{{"content":{json.dumps(piece)}}}}}\n\n' for piece in pieces]
    steps = tuple(Step(0, frame.encode(), framed=True) for frame in frames)
    mask = Mask({KEY.encode()})
    hidden = mask.of(msgspec.structs.replace(captured([CHUNKED]), steps=steps))
    told = [json.loads(step.data[6:]) for step in hidden.steps]
    assert [one["id"] for one in told] == ["c-1"] * len(frames)
    assert re.fullmatch("It is x+ so", "".join(one["delta"]["content"] for one in told))
    assert mask.in_body == 1


def test_a_secret_that_chunks_tear_is_hidden_and_their_sizes_stay() -> None:
    steps = (
        Step(0, b"0A\r\nkey: sk-12\r\n", framed=False),
        Step(1, b"0007;a=b\r\n345678!\r\n", framed=False),
    )
    mask = Mask({b"sk-12345678"})
    hidden = mask.of(msgspec.structs.replace(captured([CHUNKED]), steps=steps))
    assert [step.data for step in hidden.steps] == [b"0A\r\nkey: xxxxx\r\n", b"0007;a=b\r\nxxxxxx!\r\n"]


def test_what_is_no_credential_is_left_as_it_is() -> None:
    data = b'data: {"content": "sk-ab/cd and \\u0073 %73 c2stYWIvY2Q="}'
    mask = Mask({KEY.encode()})
    assert mask.of(captured([LENGTH % len(data) + data])).steps[0].data == data
    assert (mask.in_head, mask.in_body) == (0, 0)


def test_credentials_are_secrets_with_and_without_what_frames_them() -> None:
    headers = headers_of(
        [
            "Authorization: Bearer sk-12345678",
            "cookie: a=session-1; b=short",
            "x-api-key: key-45678",
            "x-a: plain-value",
        ]
    )
    target = target_of("http://h/v1?api_key=query-678&x=plain-value")
    assert secrets_of(target, headers) == {
        b"Bearer sk-12345678",
        b"sk-12345678",
        b"a=session-1; b=short",
        b"session-1",
        b"key-45678",
        b"query-678",
    }


@pytest.mark.parametrize(
    ("url", "lines", "secret"),
    [
        ("http://h/?api_key=abc%2Bdef%2Fghijk", [], b"abc+def/ghijk"),
        ("http://h/?api_key=abcdef+ghijk", [], b"abcdef+ghijk"),
        ("http://h/", ["cookie: session=abc%2Bdefghijk"], b"abc+defghijk"),
        ("http://h/", ['cookie: session="abcdefghijk"'], b"abcdefghijk"),
        ("http://h/?sig=abcdefghijk", [], b"abcdefghijk"),
        ("http://h/", ["x-session-id: abcdefghijk"], b"abcdefghijk"),
        ("http://h/", ["authorization: AWS4 Credential=abc/d, Signature=abcdefghijk"], b"abcdefghijk"),
        (
            "http://h/",
            ["authorization: Basic c29tZWJvZHk6cGFzc3dvcmQx"[:-1].rstrip("=")],
            b"somebody:password",
        ),
        ("http://h/", ["authorization: Basic c29tZWJvZHk6cGFzc3dvcmQ"], b"password"),
        ("http://h/", ["authorization: Basic " + b64encode(b"somebody:password").decode()], b"password"),
        (
            "http://h/",
            ["authorization: Basic " + b64encode(b"somebody:password").decode()],
            b"somebody:password",
        ),
    ],
)
def test_what_a_credential_is_decoded_is_a_secret_too(url: str, lines: list[str], secret: bytes) -> None:
    assert secret in secrets_of(target_of(url), headers_of(lines))


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("authorization: Bearer sk-12345678", False),
        ("authorization: Basic " + b64encode(b"somebody:hunter2").decode(), True),
        ("authorization: Basic " + b64encode(b"somebody:password1").decode(), False),
        ("authorization: Basic " + b64encode(b"somebody:password").decode(), False),
        ("cookie: a=1", True),
        ("x-api-key: 1234567", True),
        ("accept: */*", False),
    ],
)
def test_that_a_credential_is_too_short_is_known(line: str, *, short: bool) -> None:
    assert has_short_secret(target_of("http://h/"), headers_of([line])) is short


# -- the request


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (
            b'{"model":"m","n":1,"t":0.5,"s":true,"x":null}',
            "{model: string, n: integer, t: number, s: boolean, x: null}",
        ),
        (b'{"m":[{"r":"a"},{"r":"b"},{"r":1},"x"]}', "{m: [{r: string} | {r: integer} | string]}"),
        (b'{"a b":[],"\xc3\xa9":{}}', '{"a b": [], "\\u00e9": {}}'),
        (b"secret words", "no JSON"),
        (b"[" * 99_999, "no JSON"),
        (b"", "no JSON"),
    ],
)
def test_of_the_body_only_keys_and_types_are_told(body: bytes, shape: str) -> None:
    assert shape_of(body) == shape


@given(
    st.recursive(
        st.none() | st.text("s", min_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.just("k"), inner),
    )
)
def test_no_value_of_a_body_is_in_its_shape(value: object) -> None:
    assert "sss" not in shape_of(msgspec.json.encode(value))


def test_a_request_has_what_is_needed_and_what_was_given_wins() -> None:
    target = target_of("http://h:81/v1/x?k=v#f")
    assert (target.path, target.port, target.tls) == ("/v1/x", 81, False)
    lines = request_bytes(target, [("Accept", "text/plain"), ("a", "b")], b"{}").split(b"\r\n")
    assert lines[0] == b"POST /v1/x?k=v HTTP/1.1"
    assert lines[1] == b"host: h:81"
    assert lines[3:] == [
        b"content-type: application/json",
        b"Accept: text/plain",
        b"a: b",
        b"content-length: 2",
        b"",
        b"{}",
    ]
    assert target_of("https://[::1]").port == 443


# -- the command's refusals


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("ftp://h/",), "the URL is"),
        (("http://",), "the URL is"),
        (("http://h:x/",), "the URL: "),
        (("http://[::1/",), "the URL: "),
        (("http://me:secret@h/",), "holds a user's name"),
        (("http://h/a b",), "percent-encoded"),
        (("http://h/é",), "percent-encoded"),
        (("http://h/", "--header", "secret"), "--header: expected 'name: value'"),
        (("http://h/", "--header", "a: secret\r\nb: c"), "--header: expected 'name: value'"),
        (("http://h/", "--header", "Content-Length: 3"), "--header Content-Length: it is made from the body"),
        (("http://h/", "--body", "nowhere"), "--body nowhere: cannot be read: No such file"),
        (("http://h/", "-o", "x.json"), "-o x.json: expected a name that ends in .toml"),
        (("http://h/", "-o", "faults/reset.toml"), 'the name is "reset", which is a mode already'),
        (("http://h/", "-o", "a b.toml"), 'the name is "a b", expected a letter'),
        (("http://h/", "-o", "there.toml"), "-o there.toml: exists already"),
        (("http://127.0.0.1:1/",), "cannot connect to 127.0.0.1:1: Connection refused"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "body").write_text("{}")
    (tmp_path / "there.toml").write_text("")
    assert main(["--body", "body", "-o", "faults/x.toml", *arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith("inference-lab record: ")
    assert named in said
    assert said.count("\n") == 1
    assert "secret" not in said
    assert not (tmp_path / "faults").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("u",),
        ("u", "--max-seconds", "0"),
        ("u", "--max-seconds", "nan"),
        ("u", "--max-bytes", "0"),
        ("u", "--max-bytes", "x"),
    ],
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--body", "b", *(("-o", "x.toml") if len(arguments) > 1 else ()), *arguments])
    assert stopped.value.code == 1
    assert capsys.readouterr().err.count("\n") == 1
