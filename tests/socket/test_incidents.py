"""Deaths recorded from one server and replayed by another: the same bytes behind the head, the same ending."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.commands.record.command import main as record
from inference_lab.config.incident_file import read_incident
from inference_lab.core.faults.modes import BASIC_MODES
from tests.reference_model.contract import CHAT, COMPLETIONS
from tests.support.models import INSTANT, MODEL
from tests.support.rawclient import FIN, OPEN, RST, Received, ask, exchange, fault_request, payload, request
from tests.support.server import Server, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.tls import Certificate

DEATHS = {
    "cut": "cut_between_frames",
    "mid-frame": "cut_mid_frame",
    "utf8-cut": "cut_mid_frame;utf8=true;after_chunks=7",
    "rst": "reset",
    "silence": "stall",
    "healthy": "ok;after_chunks=9",
    "error": "error_envelope_200",
    "gzip": "ok;encoding=gzip;after_chunks=2",
    "gzip-rst": "reset;encoding=gzip_truncated",
    "too-long": "ok;after_chunks=2;length=+7;close=fin",
    "too-short": "ok;after_chunks=2;length=-7;close=fin",
    "both": "ok;after_chunks=2;length=both",
    "no-framing": "ok;after_chunks=2;close=eof",
    "trailer": "ok;after_chunks=2;chunk_error=trailer",
    "bad-size": "reset;chunk_error=bad_size",
    "no-crlf": "cut_between_frames;chunk_error=no_crlf",
    "inside": "cut_between_frames;chunk_error=response_inside",
    "half-terminator": "ok;after_chunks=2;close=partial_terminator",
    "torn-chunk": "ok;after_chunks=2;close=torn_chunk",
    "late-rst": "ok;after_chunks=2;close=terminator_rst",
    "idle": "ok;after_chunks=2;close=idle_close",
    "bytes": "ok;after_chunks=1;segment=byte;eol=crlf;bom=true",
    "padded": "reset;frame_bytes=200000",
    "refused": "overloaded_429",
    "html": "bad_gateway_html",
    "nothing": "empty_200",
    "no-content": "ok;status=204;body=empty",
}
BODY = payload(CHAT, stream_options={"include_usage": True})
SILENCE_S = 1.0
WORKERS = 9


def recorded(url: str, body: Path, output: Path, *more: str) -> None:
    assert record([url, "--body", str(body), "-o", str(output), *more]) == 0


def folder(path: Path) -> Path:
    """A config directory of its own, to hold recordings."""
    path.joinpath("lab.toml").write_text(f'{MODEL}name = "other"\naliases = ["lab"]\n{INSTANT}')
    return path


@pytest.fixture(scope="module")
def home(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config directory with a recording of each death."""
    home = folder(tmp_path_factory.mktemp("incidents"))
    body = home / "body.json"
    body.write_bytes(BODY)

    def capture(name: str) -> None:
        fault = ("--header", f"x-inference-lab-fault: {DEATHS[name]};delay_ms=1")
        bound = ("--max-seconds", "1.5" if name == "silence" else "20")
        recorded(server.url + CHAT, body, home / "faults" / f"{name}.toml", *fault, *bound)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(capture, DEATHS))
    return home


@pytest.fixture(scope="module")
def second(home: Path) -> Iterator[Server]:
    """Another server, that knows the deaths only as recordings."""
    server = start(home, "--enable-directives")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def pairs(server: Server, second: Server) -> dict[str, tuple[Received, Received]]:
    """Each death as its own server makes it, and as the other replays it."""

    def both(name: str) -> tuple[Received, Received]:
        live = fault_request(CHAT, f"{DEATHS[name]};delay_ms=1", BODY)
        return (
            exchange(server.address, live, timeout=SILENCE_S),
            exchange(second.address, fault_request(CHAT, name, BODY), timeout=SILENCE_S),
        )

    with ThreadPoolExecutor(WORKERS) as pool:
        return dict(zip(DEATHS, pool.map(both, DEATHS), strict=True))


@pytest.mark.parametrize("name", DEATHS)
def test_a_replay_is_the_capture_byte_for_byte_behind_the_head_and_ends_alike(
    pairs: dict[str, tuple[Received, Received]], name: str
) -> None:
    live, replayed = pairs[name]
    assert live.after_head or name in {"nothing", "no-content"}
    assert replayed.after_head == live.after_head
    assert (replayed.status, replayed.end) == (live.status, live.end)
    own = {"date", "server", "x-accel-buffering"}
    assert {k: v for k, v in replayed.headers.items() if k not in own} == {
        k: v for k, v in live.headers.items() if k not in own
    }


def test_the_endings_are_of_every_kind(pairs: dict[str, tuple[Received, Received]]) -> None:
    assert {replayed.end for _, replayed in pairs.values()} == {FIN, RST, OPEN}


def test_a_recording_says_how_it_ended_in_the_words_of_the_axis(home: Path) -> None:
    closes = {name: read_incident(home / "faults" / f"{name}.toml").close for name in DEATHS}
    expected = {
        "cut": "fin",
        "rst": "rst",
        "silence": "hang",
        "healthy": "terminator",
        "late-rst": "terminator_rst",
        "idle": "idle_close",
        "no-framing": "fin",
        "refused": "terminator",
        "no-content": "terminator",
    }
    assert {name: closes[name] for name in expected} == expected


def test_a_connection_is_reusable_behind_a_replayed_terminator(second: Server) -> None:
    again = fault_request(CHAT, "healthy;delay_ms=0", BODY) * 2
    got = exchange(second.address, again, timeout=SILENCE_S)
    assert got.raw.count(b"HTTP/1.1 200 OK") == 2
    assert got.raw.count(b"[DONE]") == 2


def test_a_recording_replays_on_the_other_endpoint_and_from_the_prompt(second: Server) -> None:
    captured = exchange(second.address, fault_request(CHAT, "rst", BODY)).after_head
    leg = exchange(second.address, fault_request(COMPLETIONS, "rst;delay_ms=0;name=x"))
    assert (leg.after_head, leg.end) == (captured, RST)
    asking = json.dumps(
        {"model": "lab", "stream": True, "messages": [{"role": "user", "content": "<<fault:rst>>"}]}
    )
    prompted = exchange(
        second.address, fault_request(CHAT, "ok", asking.encode()).replace(b"x-inference-lab-fault", b"x")
    )
    assert (prompted.after_head, prompted.end) == (captured, RST)


def test_a_recorded_stream_needs_a_request_for_one_and_a_recorded_refusal_does_not(second: Server) -> None:
    plain = json.dumps({"model": "lab", "messages": [{"role": "user", "content": "hello"}]}).encode()
    refused = ask(second.address, fault_request(CHAT, "rst", plain))
    assert (refused.status, refused.error["code"]) == (400, "invalid_fault_directive")
    answer = ask(second.address, fault_request(CHAT, "refused", plain))
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")


def test_what_an_incident_cannot_take_is_a_400_that_says_why(second: Server) -> None:
    got = ask(second.address, fault_request(CHAT, "rst;close=fin", BODY))
    assert got.error["message"].startswith("rst: close does not go with an incident")


def test_the_log_names_the_incident(second: Server) -> None:
    mark = second.log.mark()
    exchange(second.address, fault_request(CHAT, "rst;name=mine", BODY))
    second.log.wait_for(r"200 header rst;name=mine: \d+ frames, \d+ bytes, ended: rst", since=mark)


# -- placeholders, and a model's own incident


def test_placeholders_and_a_models_own_incident(server: Server, tmp_path: Path) -> None:
    home = folder(tmp_path)
    body = home / "body.json"
    body.write_bytes(BODY)
    fault = "x-inference-lab-fault: cut_between_frames;after_chunks=2;delay_ms=0"
    output = home / "faults" / "own.toml"
    recorded(server.url + CHAT, body, output, "--header", fault, "--placeholders")
    text = output.read_text()
    assert text.count('"id":"<<id>>"') == text.count('"model":"<<model>>"') == 3
    words = text.replace('"content":"qu0000"', '"content":"<<word>>"').replace(" qu0001", "<<word>>")
    output.write_text(words)
    (home / "lab.toml").write_text(
        f'{MODEL}name = "other"\naliases = ["lab"]\n{INSTANT}[fault]\nmode = "own"\ndelay_ms = 0\n'
    )
    second = start(home)
    try:
        asked = payload(CHAT, messages=[{"role": "user", "content": "something else"}])
        got = exchange(second.address, request("POST", CHAT, asked))
        healthy = ask(second.address, request("POST", CHAT, payload(CHAT, stream=False)))
    finally:
        second.stop()
    frames = [json.loads(chunk.removeprefix(b"data: ")) for chunk in got.chunked.chunks]
    assert got.end == FIN
    assert {frame["model"] for frame in frames} == {"other"}
    (own_id,) = {frame["id"] for frame in frames}
    assert own_id.startswith("chatcmpl-")
    assert own_id not in text
    texts = [frame["choices"][0]["delta"].get("content", "") for frame in frames]
    tag = texts[1][:2]
    assert texts == ["", f"{tag}0000", f" {tag}0001"]
    assert tag != "qu"
    assert healthy.status == 200


# -- what must not be written


def test_no_credential_and_no_text_of_the_request_reaches_the_file(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(
        payload(CHAT, messages=[{"role": "user", "content": "confidential words"}], user="somebody-known")
    )
    secrets = {
        "authorization": "Bearer sk-abcdefgh",
        "cookie": "a=1; session=ijklmnop",
        "x-api-key": "key-qrstuvwx",
    }
    # The upstream repeats a key, one byte a chunk.
    fault = 'ok;at=head;error=openai;message="no such key sk-abcdefgh";segment=byte;delay_ms=0'
    headers = [f"{name}: {value}" for name, value in {**secrets, "x-inference-lab-fault": fault}.items()]
    output = tmp_path / "faults" / "x.toml"
    url = f"{server.url}{CHAT}?api_key=yzabcdefghij"
    recorded(url, body, output, *(part for header in headers for part in ("--header", header)))
    text, said = output.read_text(), capsys.readouterr().out
    told = [
        "abcdefgh",
        "ijklmnop",
        "qrstuvwx",
        "yzabcdef",
        "confidential",
        "somebody",
        "api_key",
        "127.0.0.1",
    ]
    for secret in told:
        assert secret not in text
        assert secret not in said
    assert (
        "{model: string, stream: boolean, messages: [{role: string, content: string}], user: string}" in text
    )
    sent = b"".join(
        part
        for step in read_incident(output).steps
        for part in getattr(step, "parts", ())
        if isinstance(part, bytes)
    )
    assert b'"message":"no such key xxxxxxxxxxx"' in sent
    assert "Hidden behind x: 0 in the head, 1 in the body.\n" in said


# -- TLS


@pytest.mark.parametrize(
    ("fault", "close", "ragged"),
    [("cut_between_frames", "fin", False), ("reset", "rst", False), ("ok;close=tls_raw", "fin", True)],
)
def test_over_tls_the_end_of_the_connection_is_told_from_its_close_notify(
    tls_server: Server,
    certificate: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    close: str,
    ragged: bool,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))
    body, output = tmp_path / "body.json", tmp_path / "faults" / "x.toml"
    body.write_bytes(BODY)
    recorded(tls_server.url + CHAT, body, output, "--header", f"x-inference-lab-fault: {fault};delay_ms=0")
    assert read_incident(output).close == close
    assert ('close = "tls_raw"' in output.read_text()) is ragged


def test_a_certificate_that_nobody_vouches_for_is_refused(
    tls_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body, output = tmp_path / "body.json", tmp_path / "x.toml"
    body.write_bytes(BODY)
    assert record([tls_server.url + CHAT, "--body", str(body), "-o", str(output)]) == 1
    said = capsys.readouterr().err
    assert "certificate verify failed" in said
    assert said.count("\n") == 1
    assert not output.exists()


# -- the verdict


TOLD = ("words", "reached", "content_frames", "finish", "usage", "error_sent", "done_sent", "ends_well")


def ends_of(server: Server, test: str) -> list[tuple[str, list[str], list[dict[str, Any]]]]:
    rows = ask(server.address, request("GET", f"/lab/journal?test={test}&wait=10")).json["data"]
    assert [row["state"] for row in rows] == ["ended"]
    judged = ask(server.address, request("GET", f"/lab/verdict?test={test}")).json["data"]
    told = [{key: row[key] for key in TOLD} for row in rows]
    return [(one["end"], [finding["kind"] for finding in one["findings"]], told) for one in judged]


def test_a_replay_gets_the_verdict_of_its_original_also_from_a_file_that_was_left(
    server: Server, tmp_path: Path
) -> None:
    home = folder(tmp_path)
    body = home / "body.json"
    body.write_bytes(BODY)

    def capture(mode: str) -> None:
        fault = ("--header", f"x-inference-lab-fault: {mode};delay_ms=1")
        bound = ("--max-seconds", "1.5" if mode == "stall" else "20")
        recorded(server.url + CHAT, body, home / "faults" / f"x-{mode}.toml", *fault, *bound)

    def meet(target: Server, fault: str, test: str) -> None:
        exchange(
            target.address,
            fault_request(CHAT, fault, BODY, **{"x-test-id": test}),
            timeout=SILENCE_S,
        )

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(capture, BASIC_MODES))
    options = ("--enable-directives", "--journal", str(tmp_path / "rows.db"))
    second = start(home, *options)
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            for mode in BASIC_MODES:
                pool.submit(meet, server, f"{mode};delay_ms=1", f"live-{mode}")
                pool.submit(meet, second, f"x-{mode}", f"replay-{mode}")
        expected = {mode: ends_of(server, f"live-{mode}") for mode in BASIC_MODES}
        assert {mode: ends_of(second, f"replay-{mode}") for mode in BASIC_MODES} == expected
        second.process.send_signal(signal.SIGKILL)
        second.process.wait()
    finally:
        second.stop()
    again = start(home, *options)
    try:
        assert {mode: ends_of(again, f"replay-{mode}") for mode in BASIC_MODES} == expected
    finally:
        again.stop()
    ends = {mode: judged[0][0] for mode, judged in expected.items()}
    assert ends == {mode: "whole" if mode in {"no_done", "no_usage"} else "dead" for mode in BASIC_MODES}
