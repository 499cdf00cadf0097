"""The frames of an axes' stream, worked out a second time: eagerly, as lists, without the program's code."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tests.reference_model.contract import DONE, Stream, lab_ids, word
from tests.reference_model.tables import BEATS, CODE, ERRORS, MODES, PRESETS, TEXT

UNLIMITED = 3
"""So many heartbeats of an endless row are worked out; what is received has to begin so."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The healthy answer of the request: words, finish reason, prompt tokens, whether usage was asked for, with which
    word it begins, and how many words a thinking model thinks."""

    stream: Stream
    words: int
    finish: str
    prompt_tokens: int
    usage_asked: bool = True
    begins: int = 0
    reasons: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A frame, or a `kind` of something else: `torn` (a frame to be cut), `padded`, `fault` (a place)."""

    data: bytes
    kind: str = "frame"


def settings_of(directive: str) -> dict[str, str]:
    """All that a directive says, its mode's row included; values may not hold a semicolon."""
    mode, *parts = directive.split(";")
    given = dict(part.split("=", 1) for part in parts)
    row = settings_of(PRESETS[mode]) if mode in PRESETS else MODES[mode]
    found = {**row, **given}
    if given.get("error", "none") != "none" and "done" not in given:
        found["done"] = "true" if ERRORS[given["error"]][1] else "false"
    elif "done" not in given and found.get("at") in {"head", "role"} and found.get("error", "none") == "none":
        found["done"] = "false"
    if found.pop("utf8", "false") == "true":
        found["tear"] = "utf8"
    return found


class Frames:
    """The blocks of a stream before they are spelled and framed."""

    def __init__(self, settings: dict[str, str], answer: Answer) -> None:
        self.settings = settings
        self.answer = answer
        self.stream = answer.stream
        self.tokens = 0
        begins = answer.begins if self.get("restart", "false") == "false" else 0
        self.fresh = max(0, begins - self.number("overlap") + self.number("skip"))  # the next word
        if self.get("content", "text").startswith(
            "tool_call"
        ):  # a call has words of its own, behind its announcement
            self.fresh = 0
        self.end = self.fresh + answer.words

    def get(self, key: str, default: str = "none") -> str:
        value = self.settings.get(key, default)
        return value[1:-1] if value.startswith('"') else value

    def number(self, key: str, default: int = 0) -> int:
        return int(self.get(key, str(default)))

    # -- frames

    def blocks(self) -> list[Block]:
        far = self.get("at", "frames")
        found = self.beats(self.number("ttft_ms"))
        if far in {"frames", "role"}:
            again = self.get("role_again", "false") == "true"
            found += [Block(self.dressed(frame)) for frame in self.stream.opening() * (1 + again)]
        found += self.content() if far == "frames" else [Block(b"", "fault")]
        if self.get("tear") != "none":
            return found
        if self.get("error") != "none":
            found.append(Block(self.error()))
        if far == "frames":
            found += [Block(frame) for frame in self.tail()]
        found += [Block(DONE)] * {"true": 1, "false": 0, "twice": 2}[self.get("done", "true")]
        if self.get("sequence") == "after_done":
            found.append(Block(self.dressed(self.say(1))))
        if self.get("close", "terminator") == "hang":
            found += self.beats_of_a_hang()
        return found

    def content(self) -> list[Block]:
        sequence, _, number = self.get("sequence").partition(":")
        wanted = self.get("after_chunks", "all")
        found: list[Block] = []
        frames: list[bytes] = []
        place = 0
        while self.fresh < self.end if wanted == "all" else place < int(wanted):
            most = self.end if wanted == "all" else None
            frames.append(self.dressed(self.say(self.size(place), most)))
            place += 1
        found += [Block(frame) for frame in frames]
        if self.get("frame_bytes") != "none":
            frame = frames[-1]
            blanks = b" " * (self.number("frame_bytes") - len(frame))
            found[-1] = Block(frame[:-3] + blanks + frame[-3:], "padded")
        tear = self.get("tear")
        if tear != "none":
            size = 1 if wanted == "all" else self.size(place)
            found.append(Block(self.dressed(self.say(size, accent=tear == "utf8")), "torn"))
        found.append(Block(b"", "fault"))
        if self.get("malformed") == "true":
            ident = json.dumps(self.stream.ident)
            found.append(Block(f'data: {{"id":{ident},"choices":[{{"delta":{{"content":"\n\n'.encode()))
        rest = self.get("then", "end") == "rest"
        limit = self.end if rest else None
        if sequence == "dup":
            found += [Block(frame) for frame in frames[-int(number) :]]
        elif sequence == "drop":
            before = self.tokens
            for _ in range(int(number)):
                self.say(self.size(place), limit)
                place += 1
            self.tokens = before
        elif sequence == "swap":
            swapped = []
            for _ in range(int(number)):
                swapped.append(Block(self.dressed(self.say(self.size(place), limit))))
                place += 1
            found += swapped[::-1]
        elif sequence in {"choices_null", "choices_empty"}:
            choices = b"null" if sequence == "choices_null" else b"[]"
            head = self.stream.usage(0, 0).partition(b'"choices":')[0]
            found.append(Block(self.dressed(head + b'"choices":' + choices + b"}\n\n")))
        if rest:
            found += self.beats(self.number("pause_ms"), waits=True)
            if self.get("content") == "reasoning":
                return found + self.thinking_on(place)
            while self.fresh < self.end:
                found.append(Block(self.dressed(self.say(self.size(place), limit))))
                place += 1
        return found

    def size(self, place: int) -> int:
        asked = self.get("tokens_per_frame", "1")
        return (1, 2, 4)[place % 3] if asked == "varied" else int(asked)

    def say(self, words: int, most: int | None = None, *, accent: bool = False) -> bytes:
        """The next content frame, of so many words but not past the `most`-th."""
        first = self.fresh
        self.fresh = first + words if most is None else min(first + words, most)
        content, stream = self.get("content", "text"), self.stream
        if content in {"tool_call_parallel", "tool_call_complete"}:
            return self.say_call(first, content, accent=accent)
        self.tokens += self.fresh - first
        if content == "tool_call":
            if first == 0:
                opening = '{"name": "get_current_weather", "arguments": {"location": "'
                self.tokens += len(lab_ids(opening)) - 1
            frame = stream.content("mid_tool_call", first + 1, "get_current_weather", "location")[-1]
            if first == 0:
                return frame
            due = word(stream.tag, first - 1)
            said = word(stream.tag, first - 1 + self.number("skip"))
            return frame.replace(due.encode(), (said + "é" * (accent and not said.endswith("é"))).encode())
        text = "".join(word(stream.tag, index) for index in range(first, self.fresh))
        if accent and not text.endswith("é"):
            text += "é"
        if content == "text":
            return stream.text(text)
        if first == 0:
            self.tokens += len(lab_ids("<think>"))
        text = text.upper()
        if stream.chat:
            return stream.delta({self.get("reasoning_key", "reasoning_content"): text})
        return stream.piece(text if first else "<think>" + text)

    def thinking_on(self, place: int) -> list[Block]:
        """The rest behind some reasoning: more of it up to what the model thinks, then text, in the answer's ids."""
        due = [(True, index, 1) for index in range(self.fresh, self.answer.reasons)]
        due += [
            (False, index, 1 + (not index) * len(lab_ids("</think>"))) for index in range(self.answer.words)
        ]
        found: list[Block] = []
        while due:
            thinks, first, _ = due[0]
            text = "" if thinks or first or self.stream.chat else "</think>"
            words = 0
            while due and words < self.size(place) and due[0][0] == thinks:
                if self.tokens + due[0][2] > self.answer.words:
                    due = []
                    break
                _, index, ids = due.pop(0)
                text += word(self.stream.tag, index).upper() if thinks else word(self.stream.tag, index)
                self.tokens += ids
                words += 1
            place += 1
            key = self.get("reasoning_key", "reasoning_content")
            if words:
                in_key = thinks and self.stream.chat
                frame = self.stream.delta({key: text}) if in_key else self.stream.text(text)
                found.append(Block(self.dressed(frame)))
        return found

    def say_call(self, place: int, content: str, *, accent: bool) -> bytes:
        """Frame `place` of a call that ends, or of two."""
        frames = self.number("after_chunks")
        whole = -(-frames // 2) if content == "tool_call_parallel" else frames
        index, at = (0, place) if place < whole else (1, place - whole)
        text = word(self.stream.tag, at - 1) if at else ""
        text += "é" * (accent and not text.endswith("é"))
        closing = "" if index or at < whole - 1 else '"}'
        raw_closing = closing and closing + "}"
        opening = '{"name": "get_current_weather", "arguments": {"location": "'
        self.tokens += (1 if at else len(lab_ids(opening))) + len(lab_ids(raw_closing))
        if not self.stream.chat:
            return self.stream.piece(text + raw_closing if at else opening)
        call: dict[str, object] = {"index": index}
        if not at:
            ident = "call_" + self.stream.ident.partition("-")[2] + f"_{index}" * (index > 0)
            call |= {"id": ident, "type": "function"}
            call["function"] = {"name": "get_current_weather", "arguments": ""}
        else:
            call["function"] = {"arguments": '{"location": "' * (at == 1) + text + closing}
        return self.stream.delta({"tool_calls": [call]})

    def tail(self) -> list[bytes]:
        usage, finish, answer = self.get("usage", "asked"), self.settings.get("finish"), self.answer
        if finish == "none":
            return [self.usage()] if usage == "always" else []
        if finish is None:
            runs_on = self.get("after_chunks", "all") == "all" or self.get("then", "end") == "rest"
            finish = answer.finish if runs_on else "stop"
        assert finish is not None
        finish = finish.strip('"')
        frame = self.stream.finish(finish)
        if self.get("text_in_finish", "false") == "true":
            text = word(self.stream.tag, self.fresh)
            self.fresh += 1
            self.tokens += 1
            frame = (
                self.stream.delta({"content": text}, finish)
                if self.stream.chat
                else self.stream.piece(text, finish)
            )
        if usage == "on_finish":
            frame = self.with_usage(frame, self.usage())
        found = [self.dressed(frame)]
        if self.get("sequence") == "double_finish":
            found *= 2
        if self.get("sequence") == "after_finish":
            found.append(self.dressed(self.say(1)))
        if usage == "with_choices":
            found.append(self.with_usage(self.stream.finish(finish), self.usage()))
        elif usage == "always" or (answer.usage_asked and usage not in {"never", "on_finish"}):
            found.append(self.usage())
        return found

    def usage(self) -> bytes:
        """The usage frame, as wrong as the directive asks."""
        off_by = self.get("usage_off_by")
        tokens = self.tokens if off_by == "none" else max(0, self.tokens + int(off_by))
        prompt = self.answer.prompt_tokens + (self.get("bos_shift", "false") == "true")
        return self.stream.usage(prompt, tokens)

    def with_usage(self, frame: bytes, usage: bytes | None) -> bytes:
        counts = "null"
        if usage is not None:
            counts = usage.decode().partition('"usage":')[2].removesuffix("}\n\n")
        return frame.removesuffix(b"}\n\n") + f',"usage":{counts}}}\n\n'.encode()

    def dressed(self, frame: bytes) -> bytes:
        if self.get("empty_finish", "false") == "true":
            frame = frame.replace(b'"finish_reason":null', b'"finish_reason":""')
        match self.get("usage", "asked"):
            case "every_chunk":
                return self.with_usage(frame, self.usage())
            case "null_every_chunk":
                return self.with_usage(frame, None)
            case "zero_every_chunk":
                return self.with_usage(frame, self.stream.usage(0, 0))
        return frame

    def error(self) -> bytes:
        name = self.get("error")
        text = ERRORS[name][0]
        code = self.settings.get("code", CODE)
        if code == "absent":
            text = re.sub(r', ?"code": ?N|"code":N,', "", text)
        if "type" in self.settings:
            place = text.rindex('"type":')
            text = text[:place] + re.sub(r'(: ?)"[^"]*"', rf'\1"{self.get("type")}"', text[place:], count=1)
        message = self.get("message", TEXT)
        number = "null" if code == "null" else code if re.fullmatch(r"\d+|\".*\"", code) else json.dumps(code)
        kind = "chat.completion.chunk" if self.stream.chat else "text_completion"
        stream = self.stream
        head = f'"id":"{stream.ident}","object":"{kind}","created":{stream.created},"model":"{stream.model}"'
        marks = {"M": json.dumps(message, ensure_ascii=False), "m": message, "N": number, "HEAD": head}
        text = re.sub(r"(?<![A-Za-z])(?:HEAD|[MmN])(?![A-Za-z'])", lambda mark: marks[mark[0]], text)
        return text.encode() + (b"\n" if name in {"raw_json", "raw_html"} else b"\n\n")

    def beats(self, ms: int, *, waits: bool = False) -> list[Block]:
        beats = self.get("beats", "unlimited")
        each = self.number("heartbeat_ms", 1000)
        if waits and not ms:
            return self.some_beats(0 if beats == "unlimited" else int(beats))
        return self.some_beats(ms // each if beats == "unlimited" else min(ms // each, int(beats)))

    def beats_of_a_hang(self) -> list[Block]:
        beats = self.get("beats", "unlimited")
        return self.some_beats(UNLIMITED if beats == "unlimited" else int(beats))

    def some_beats(self, count: int) -> list[Block]:
        kind = self.get("heartbeat")
        if kind == "none":
            return []
        empty = self.stream.text("")
        return [Block(BEATS[kind] if kind in BEATS else self.dressed(empty))] * count
