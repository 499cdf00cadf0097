"""`inference-lab record`: capture a live response into an incident file, to be replayed as a mode."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import tomli

from inference_lab.commands.record.capture import End
from inference_lab.commands.record.connection import Outcome, record
from inference_lab.commands.record.masking import LOOKED_FOR, Mask
from inference_lab.commands.record.target import (
    SHORT_SECRETS,
    has_short_secret,
    headers_of,
    request_bytes,
    secrets_of,
    shape_of,
    target_of,
)
from inference_lab.commands.record.writing import About, incident_text, template_of
from inference_lab.config.incident_file import name_refusal, parse_incident
from inference_lab.config.toml_reading import show_value
from inference_lab.console import Parser, UserError, print_lines, run

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROG: Final = "inference-lab record"
_ENDS: Final = {
    "terminator": "complete, the connection stayed open",
    "terminator_rst": "complete, then a reset",
    "idle_close": "complete, then closed",
    "fin": "closed before the response was complete",
    "rst": "reset before the response was complete",
    "hang": "still open, the response incomplete",
}


def main(argv: Sequence[str]) -> int:
    """Run the command with its arguments; returns the exit status."""
    options = _parser().parse_args(argv)
    return run(_PROG, lambda: _record(options))


def _parser() -> Parser:
    parser = Parser(
        _PROG,
        "POST a body to a live server, and write its response as an incident that the server of this program replays"
        " byte for byte.",
    )
    parser.add_argument("url", metavar="URL", help="http://… or https://…, such as …/v1/chat/completions")
    parser.add_argument(
        "--body", required=True, metavar="FILE", help="the request's body; - reads standard input"
    )
    parser.add_argument(
        "-o",
        dest="output",
        required=True,
        metavar="FILE",
        help="where to write, faults/NAME.toml in a config directory; NAME becomes the mode",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="send a header; may be repeated",
    )
    parser.add_argument(
        "--max-seconds",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="how long to listen (default 60); what is still open then is recorded as a hang",
    )
    parser.add_argument(
        "--max-bytes",
        type=_bytes,
        default=16 * 2**20,
        metavar="N",
        help="how much of a body to keep (default 16777216); what is longer is recorded as a hang",
    )
    parser.add_argument(
        "--placeholders",
        action="store_true",
        help="put placeholders where the response's id and model stand, so that a replay has its own",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number above 0, at most 1e6")
    return value


def _bytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}, expected an integer from 1 to 9999999999")
    return int(text)


def _record(options: argparse.Namespace) -> None:
    target = target_of(options.url)
    headers = headers_of(options.header)
    output = Path(options.output)
    _check_output(output)
    body = _body(options.body)
    outcome = record(
        target,
        request_bytes(target, headers, body),
        max_seconds=options.max_seconds,
        max_bytes=options.max_bytes,
    )
    mask = Mask(secrets_of(target, headers))
    recorded = mask.of(outcome.recorded)
    template = template_of(recorded.steps) if options.placeholders else None
    comments = (*_comments(outcome, mask), *([SHORT_SECRETS] if has_short_secret(target, headers) else []))
    about = About(output.stem, mask.text(target.path), mask.text(shape_of(body)), comments)
    text = incident_text(recorded, about, template)
    parse_incident(tomli.loads(text), output)  # what is written can be read
    _write(output, text)
    if options.placeholders and template is None:
        sys.stderr.write(f"{_PROG}: the response has neither id nor model: no placeholders\n")
    told = (
        f"{output}: {recorded.status}, pieces: {len(recorded.steps)}, bytes: {recorded.body_bytes},"
        f" after {outcome.seconds:.1f} s {_ENDS[recorded.close]}"
    )
    print_lines((told, *comments[1:]))


def _comments(outcome: Outcome, mask: Mask) -> list[str]:
    lines = [f"Recorded by {_PROG}: {_ENDS[outcome.recorded.close]}."]
    if outcome.end is End.FULL:
        lines.append("There was more: recording stopped at --max-bytes.")
    if outcome.end is End.OPEN and outcome.recorded.close == "hang":
        lines.append("There may have been more: recording stopped at --max-seconds.")
    if outcome.ragged:
        lines.append(
            'TLS ended without close_notify: close = "tls_raw" replays that, on a TLS endpoint only.'
        )
    if mask.has_secrets:
        coding = dict(outcome.recorded.headers).get("content-encoding", "identity")
        within = "" if coding.lower() == "identity" else f"; the body is {coding}, and was not looked into"
        lines += [
            f"Credentials of the request, {LOOKED_FOR}, were looked for in the response{within}.",
            f"Hidden behind x: {mask.in_head} in the head, {mask.in_body} in the body.",
        ]
    return lines


def _check_output(output: Path) -> None:
    """Refuse before anything is sent what could not be written or used afterwards."""
    if output.suffix != ".toml":
        raise UserError(f"-o {output}: expected a name that ends in .toml")
    refusal = name_refusal(output.stem)
    if refusal is not None:
        raise UserError(f"-o {output}: the name is {show_value(output.stem)}, {refusal}")
    if _exists(output):
        raise UserError(f"-o {output}: exists already; remove it or choose another name")


def _exists(output: Path) -> bool:
    try:
        return output.exists()
    except OSError as error:
        raise UserError(f"-o {output}: cannot be looked at: {error.strerror}") from None


def _body(path: str) -> bytes:
    try:
        if path == "-" and sys.stdin is None:
            raise UserError("--body -: cannot be read: standard input is closed")
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(
            f"--body {path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def _write(output: Path, text: str) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"-o {output}: cannot be written: {error.strerror}") from None
