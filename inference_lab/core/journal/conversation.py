"""The verdict over the server's side: the legs of a conversation in order, and what a gateway did wrong between them.

Pure: rows in, findings out. What the gateway's own client received is `oracle`'s to judge.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from inference_lab.core.journal.filters import Filter
from inference_lab.core.journal.findings import (
    SILENT_MS,
    Between,
    Finding,
    Kind,
    Note,
    Remark,
    end_s,
    ends_whole,
    is_slow,
    is_talking,
    is_whole,
    overlap,
)
from inference_lab.core.journal.row import Unplanned

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from inference_lab.core.journal.row import Row

End: TypeAlias = Literal["whole", "dead", "open", "unknown"]


class Leg(msgspec.Struct, frozen=True):
    """What is of interest of a row, under the row's names; `asked_at` is its time.

    `max_tokens` is the limit that was sent, under either name, and is not judged: what is left of it is the tokenizer's
    to say.
    """

    id: int
    asked_at: float
    path: str
    prompt: str | None
    progress: int
    max_tokens: int | None
    words: int | None
    reached: int | None
    trigger: str | None
    fault: str | None
    status: int | None
    state: str
    ending: str | None
    peer: str | None
    finish: str | None
    done_sent: bool
    bytes_unsent: int


class Conversation(msgspec.Struct, frozen=True):
    """One answer's legs in the order in which they were asked for, and what is to be said of them.

    `end` is how the last leg leaves the answer: `whole`, `dead`, `open` while it lasts, or `unknown`.
    """

    prompt: str
    tag: str | None
    test: str | None
    end: End
    legs: tuple[Leg, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Remark, ...]


def verdicts(
    fetch: Callable[[Filter], Iterable[Row]], *, prompt: str | None = None, test: str | None = None
) -> list[Conversation]:
    """The conversations with this key or of this test, or all; `fetch` gives the rows that match a filter.

    Legs that were rendered anew have another key, so the rows of a key's tests are looked through too.
    """
    found = {row.id: row for row in fetch(Filter(prompt=prompt, test=test))}
    if prompt is not None and test is None:
        for related in sorted({row.test for row in found.values() if row.test is not None}):
            found.update((row.id, row) for row in fetch(Filter(test=related)))
    rows = sorted(found.values(), key=lambda row: (row.time, row.id))
    sent_twice, invented = _sent_twice(rows), _invented(rows)
    judged = [judge(legs, sent_twice=sent_twice, invented=invented) for legs in joined(rows)]
    return [one for one in judged if prompt is None or any(leg.prompt == prompt for leg in one.legs)]


def joined(rows: Iterable[Row]) -> list[list[Row]]:
    """Completions grouped into conversations, each in the order of time.

    A conversation is told by test and key. A leg under another key joins the one of its test whose tag its words have.
    A first leg after a whole answer, or beside one that lasts, begins another conversation.
    """
    conversations: list[list[Row]] = []
    by_key: dict[tuple[str | None, str], list[Row]] = {}
    by_tag: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.time, row.id)):
        if row.prompt is None or row.progress is None:
            continue
        group = by_key.get((row.test, row.prompt))
        if group is None and row.progress and row.test is not None and row.tag is not None:
            group = by_tag.get((row.test, row.tag))
        if group is None or (not row.progress and (is_whole(group[-1]) or overlap(group[-1], row))):
            group = by_key[row.test, row.prompt] = []
            conversations.append(group)
        if row.test is not None and row.tag is not None:
            by_tag[row.test, row.tag] = group
        group.append(row)
    return conversations


def judge(
    rows: list[Row], *, sent_twice: Container[int] = (), invented: Mapping[int, list[str]] | None = None
) -> Conversation:
    """One conversation's rows in the order of time.

    `sent_twice` has the rows whose requests came twice at once, `invented` calls that were not sent so, by row.
    """
    findings: list[Finding] = []
    notes: list[Remark] = []
    between = Between(rows[0])
    for number, row in enumerate(rows):
        found, noted = between.leg(row)
        findings += found
        for call in (invented or {}).get(row.id, ()):
            told = f"its history holds {call} with arguments that were never sent"
            findings.append(Finding(Kind.INVENTED_ARGUMENTS, number, told))
        notes += noted
        if row.id in sent_twice:
            notes.append(Remark(Note.SENT_TWICE, number))
    first, last = rows[0], rows[-1]
    if _left_early(last):
        notes.append(Remark(Note.LEFT_EARLY, len(rows) - 1))
    return Conversation(
        str(first.prompt),
        first.tag,
        first.test,
        _end_of(last),
        tuple(map(_leg, rows)),
        tuple(findings),
        tuple(notes),
    )


def _end_of(last: Row) -> End:
    if last.state == "open":
        return "open"
    if last.ends_well is None:  # a server that was lost, or a captured response that nobody can read
        return "unknown"
    if not ends_whole(last):
        return "dead"
    return "unknown" if last.bytes_unsent else "whole"


def _left_early(last: Row) -> bool:
    """Whether its client left it while it was talking."""
    has_left = (
        last.ending == Unplanned.CLIENT_LEFT and last.silent_ms is not None and last.silent_ms < SILENT_MS
    )
    return has_left and is_talking(last) and not is_slow(last)


def _sent_twice(rows: Iterable[Row]) -> set[int]:
    """The rows whose request came again, or had come already, while the other was being answered, in one test."""
    same: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.test is not None and row.body_digest is not None and row.prompt is not None:
            same.setdefault((row.test, row.path, row.body_digest), []).append(row)
    found = set()
    for group in same.values():
        longest = group[0]
        for before, row in pairwise(group):
            if overlap(before, row):
                found |= {before.id, row.id}
            if overlap(longest, row):
                found |= {longest.id, row.id}
            longest = max(longest, row, key=end_s)
    return found


def _invented(rows: Iterable[Row]) -> dict[int, list[str]]:
    """The calls of ours, by row, that a history holds otherwise than they were sent earlier in the same test.

    What has not been delivered for certain may be held in part.
    """
    sent: dict[tuple[str, str], set[str] | None] = {}
    continued: dict[str, set[str]] = {}
    found: dict[int, list[str]] = {}
    for row in rows:
        if row.test is None:
            continue
        for call in row.history_calls:
            known = sent.get((row.test, str(call.id)))
            if known is not None and call.arguments not in known | continued.get(row.test, set()):
                found.setdefault(row.id, []).append(str(call.id))
        for call in row.calls:
            if call.id is None:
                continued.setdefault(row.test, set()).add(call.arguments)
                continue
            before = sent.setdefault((row.test, call.id), set())
            is_certain = row.state == "ended" and not row.bytes_unsent and row.peer != "rst"
            if before is not None and is_certain:
                before.add(call.arguments)
            elif not is_certain:
                sent[row.test, call.id] = None
    return found


def _leg(row: Row) -> Leg:
    limits = (row.parameters.get(name) for name in ("max_completion_tokens", "max_tokens"))
    told: dict[str, Any] = {
        "asked_at": row.time,
        "progress": row.progress or 0,
        "max_tokens": next((limit for limit in limits if isinstance(limit, int)), None),
    }
    names = [field for field in Leg.__struct_fields__ if field not in told]
    return Leg(**told, **{field: getattr(row, field) for field in names})
