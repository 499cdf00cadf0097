"""`inference-lab verdict`: what a gateway asked for leg by leg, judged from the journal.

Exit status: 0 nothing found, 2 findings, 1 anything else, a conversation that is not there too.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from inference_lab.commands.journal import fetch, source_parser, wanted_by
from inference_lab.console import UserError, json_line, print_lines, run
from inference_lab.core.apis.reading import NAME_OF_END
from inference_lab.core.journal.conversation import Conversation, Leg, verdicts

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

_PROG: Final = "inference-lab verdict"
_FOUND: Final = 2


def main(arguments: Sequence[str]) -> int:
    """Run the command with its arguments; returns the exit status."""
    parser = source_parser(_PROG, "Judge what a gateway asked for, leg by leg.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--prompt", metavar="KEY", help="the conversation's key, 16 hex digits")
    which.add_argument("--test", metavar="ID", help="all conversations of this test")
    which.add_argument("--all", action="store_true", help="all conversations of the journal")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    options = parser.parse_args(arguments)
    judged: list[Conversation] = []
    status = run(_PROG, lambda: judged.extend(_judge(options)))
    return status or (_FOUND if any(one.findings for one in judged) else 0)


def _judge(options: Namespace) -> list[Conversation]:
    wanted_by(options)  # a key or id that none can be is said, and not looked for
    judged = verdicts(partial(fetch, options), prompt=options.prompt, test=options.test)
    if not judged:
        which = options.prompt or options.test
        raise UserError(f"no such conversation: {which}" if which else "no conversation in the journal")
    if options.json:
        sys.stdout.write(json_line(msgspec.to_builtins(judged)))
    else:
        print_lines(line for one in judged for line in _lines(one))
    return judged


def _lines(one: Conversation) -> Iterator[str]:
    test = "" if one.test is None else f" of test {one.test}"
    yield f"{one.prompt} {one.tag}{test}: {one.end}; legs {len(one.legs)}; findings {len(one.findings)}"
    for number, leg in enumerate(one.legs):
        notes = ", ".join(note.kind.value for note in one.notes if note.leg == number)
        yield f"  leg {number}: {_leg(leg)}" + (f" ({notes})" if notes else "")
        for finding in one.findings:
            if finding.leg == number:
                yield f"    {finding.kind.value}: {finding.message}"


def _leg(leg: Leg) -> str:
    reached = "?" if leg.reached is None else str(leg.reached)
    who = leg.trigger if leg.fault is None else f"{leg.trigger} {leg.fault}"
    done = f", {NAME_OF_END}" if leg.done_sent else ""
    peer = "" if leg.peer in {None, "none"} else f" by {leg.peer}"
    ending = "open" if leg.state == "open" else f"{leg.ending}{peer}"
    limit = "" if leg.max_tokens is None else f", max_tokens {leg.max_tokens}"
    return f"words {leg.progress} to {reached}{limit}, {who}, {ending}{done}"
