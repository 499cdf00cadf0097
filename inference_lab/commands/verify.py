"""`inference-lab verify`: judge what a gateway's client received, from standard input.

Prints one line for the verdict and one per finding, or with `--json` one object:

    {"verdict": "whole" | "honest prefix" | "wrong", "tag": "qu" | null, "words": {"text": 48, …},
     "finish": "stop" | null, "done": true, "error": false, "completion_tokens": 48 | null, "bytes": 9000,
     "finding_count": 1,
     "findings": [{"kind", "weight", "message", "channel", "word", "offset", "count", "ignored"}, …],
     "notes": {"comments": 3, …}}

`kind` is one of `oracle.Kind`, `weight` of `oracle.Weight`, a note one of `oracle.Note`. Exit status: 0 whole, 1 honest
prefix, 2 wrong, 64 wrong usage of the command (sysexits.h, EX_USAGE), which includes an input that is no response's
body as it was sent, 74 the stream cannot be read, or the verdict not be written (EX_IOERR).
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import BinaryIO, Final

from inference_lab.console import Parser, json_line, print_lines, written
from inference_lab.core.one_line import short_line
from inference_lab.core.oracle import Finding, Verdict, foreign, kinds_named, verify

_PROG: Final = "inference-lab verify"
_USAGE_ERROR: Final = 64
_INPUT_OUTPUT_ERROR: Final = 74
_BLOCK_BYTES: Final = 65536
_HEAD_BYTES: Final = 8
_FINISH_CHARACTERS: Final = 200
_STATUSES: Final = range(100, 600)
_FIRST_FAILURE: Final = 400


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else _USAGE_ERROR
    if sys.stdin is None:
        return _unreadable("it is closed")
    blocks = _blocks(sys.stdin.buffer)
    is_failure = options.status is not None and options.status >= _FIRST_FAILURE
    try:
        head = _head_of(blocks)
        if not is_failure and (sentence := foreign(head)):
            sys.stderr.write(f"{_PROG}: this is no body as it was sent: {sentence}\n")
            return _USAGE_ERROR
        verdict = verify(
            chain((head,), blocks),
            tokens=options.tokens,
            max_tokens=options.max_tokens,
            ended=options.ended,
            start=options.start,
            tag=options.tag,
            hidden_tokens=options.hidden_tokens,
            status=options.status,
            stream=options.stream,
            finish=options.finish,
            usage=options.usage,
            ignore=options.ignore,
        )
    except OSError as error:
        return _unreadable(error.strerror or str(error))
    return written(_PROG, lambda: _print(verdict, as_json=options.json), failure=_INPUT_OUTPUT_ERROR)


def _unreadable(reason: str) -> int:
    sys.stderr.write(f"{_PROG}: standard input cannot be read: {reason}\n")
    return _INPUT_OUTPUT_ERROR


def _print(verdict: Verdict, *, as_json: bool) -> int:
    if as_json:
        sys.stdout.write(json_line(_as_json(verdict)))
    else:
        print_lines(verdict.lines())
    return verdict.exit_code


def _parser() -> Parser:
    parser = Parser(
        _PROG, "Judge a received stream: curl -N gateway… | inference-lab verify", status=_USAGE_ERROR
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--tokens", type=_natural, metavar="N", help="words that the answer must have")
    length.add_argument(
        "--max-tokens",
        type=_natural,
        metavar="N",
        help="tokens that the answer may have, its markup included",
    )
    parser.add_argument(
        "--ended",
        choices=("unknown", "clean", "broken"),
        default="unknown",
        help="what the transport said: clean (curl 0), broken (18, 56, 28)",
    )
    parser.add_argument(
        "--start", type=_natural, default=0, metavar="K", help="index of the first word (default 0)"
    )
    parser.add_argument("--tag", type=_tag, help="the answer's two letters, if others are to be refused")
    parser.add_argument(
        "--hidden-tokens",
        type=_natural,
        default=0,
        metavar="N",
        help="tokens that usage counts for markup which the stream does not show (default 0)",
    )
    parser.add_argument(
        "--status", type=_status, metavar="N", help="the response's status; from 400 on no body is an answer"
    )
    parser.add_argument("--stream", action="store_true", help="the client asked for a stream")
    parser.add_argument(
        "--finish", metavar="R", help="the finish reason that the upstream said, as chat spells it"
    )
    parser.add_argument(
        "--usage",
        choices=("asked", "not"),
        default="not",
        help="whether the client asked for usage (default not)",
    )
    parser.add_argument(
        "--ignore",
        type=_ignored,
        action="append",
        default=[],
        metavar="NAME",
        help="a finding, or a weight (text, shape, accounting), that is not to count; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


def _status(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) == 3 and int(text) in _STATUSES):
        raise argparse.ArgumentTypeError(f"{text!r} is no status: 100 to 599")
    return int(text)


def _ignored(text: str) -> str:
    try:
        kinds_named((text,))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _tag(text: str) -> str:
    if not (len(text) == 2 and text.isascii() and text.isalpha() and text.islower()):
        raise argparse.ArgumentTypeError(f"{text!r} is no tag: two lower-case letters")
    return text


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """What is there, as soon as it is there."""
    read = getattr(stream, "read1", stream.read)
    while block := read(_BLOCK_BYTES):
        yield block


def _head_of(blocks: Iterator[bytes]) -> bytes:
    """The first bytes, as many as tell a body from what is none."""
    head = b""
    while len(head) < _HEAD_BYTES and (block := next(blocks, b"")):
        head += block
    return head


def _as_json(verdict: Verdict) -> dict[str, object]:
    return {
        "verdict": verdict.outcome,
        "tag": verdict.tag,
        "words": verdict.words,
        "finish": None if verdict.finish is None else short_line(verdict.finish, _FINISH_CHARACTERS),
        "done": verdict.done,
        "error": verdict.error,
        "completion_tokens": verdict.completion_tokens,
        "bytes": verdict.byte_count,
        "finding_count": verdict.finding_count,
        "findings": [
            *(_finding_as_json(finding, ignored=False) for finding in verdict.findings),
            *(_finding_as_json(finding, ignored=True) for finding in verdict.ignored),
        ],
        "notes": {note.value: count for note, count in verdict.notes.items()},
    }


def _finding_as_json(finding: Finding, *, ignored: bool) -> dict[str, object]:
    return {
        "kind": finding.kind.value,
        "weight": finding.weight.value,
        "message": finding.message,
        "channel": finding.channel,
        "word": finding.word,
        "offset": finding.offset,
        "count": finding.count,
        "ignored": ignored,
    }
