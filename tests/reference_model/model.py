"""What each axis promises, worked out a second time: eagerly, from lists of frames, without the program's code.

`respond` takes a directive and says what stands on the wire behind the head, and how the response ends.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.reference_model.contract import word
from tests.reference_model.frames import Answer, Block, Frames, settings_of
from tests.reference_model.tables import OF_CONTENT_AND_TAIL, REJECTED, SAYS_NOTHING, TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable

KEEP, IDLE, STALE = "keep", "idle", "stale"
ENDS = {
    "terminator": KEEP,
    "terminator_rst": "rst",
    "idle_close": IDLE,
    "stale": STALE,
    "fin": "fin",
    "fin_close": "fin",
    "eof": "fin",
    "partial_terminator": "fin",
    "torn_chunk": "fin",
    "tls_raw": "fin",
    "rst": "rst",
    "hang": "open",
}


@dataclass(frozen=True, slots=True)
class Response:
    """The bytes behind the head, how the response ends, and what the head says besides."""

    wire: bytes
    end: str
    status: int = 200
    headers: tuple[tuple[str, str | None], ...] = ()
    infinite_pieces: bool = False


def respond(directive: str, answer: Answer) -> Response:
    """The response to a streaming request."""
    settings = settings_of(directive)
    return _Model(on_leg(settings) if answer.begins else settings, answer).response()


def on_leg(settings: dict[str, str]) -> dict[str, str]:
    """What is left of a directive on a leg that is refused, or that says nothing."""
    name = settings.get("reject", "none")
    if REJECTED.get(name, {}).get("status"):
        return {key: settings[key] for key in ("ttft_ms", "name") if key in settings} | REJECTED[name]
    row = REJECTED[name] if name != "none" else SAYS_NOTHING
    if name == "none" and settings.get("instant_stop", "false") == "false":
        return settings
    return {key: value for key, value in settings.items() if key not in OF_CONTENT_AND_TAIL} | row


class _Model(Frames):
    # -- the whole response

    def response(self) -> Response:
        close = self.get("close", "terminator")
        end = ENDS[close]
        if self.get("at", "frames") == "request":
            return Response(b"", end, status=0)
        if self.get("status", "200") != "200" or self.get("answer_as", "asked") not in {"asked", "sse"}:
            return self.late_or_not(self.no_stream(end))
        pieces = self.segments(self.coded(self.spelled(self.blocks())))
        headers: list[tuple[str, str | None]] = [
            ("content-type", self.get("content_type", "text/event-stream; charset=utf-8")),
            ("content-encoding", "gzip" if self.get("encoding") in {"gzip", "gzip_truncated"} else None),
            ("connection", "close" if close in {"fin_close", "eof"} else None),
        ]
        size = sum(len(piece.data) for piece in pieces if piece.kind != "fault")
        length = self.get("length")
        if length != "none":
            headers.append(("content-length", str(size + (0 if length == "both" else int(length)))))
        chunked = close != "eof" and length in {"none", "both"}
        headers.append(("transfer-encoding", "chunked" if chunked else None))
        wire = self.framed(pieces) if chunked else b"".join(piece.data for piece in pieces)
        if chunked:
            wire += self.last(close)
        infinite_pieces = (
            close == "hang" and self.get("heartbeat") != "none" and self.get("beats") in {"none", "unlimited"}
        )
        return Response(
            wire, end, 200, tuple(headers), infinite_pieces=infinite_pieces and self.get("tear") == "none"
        )

    def late_or_not(self, plain: Response) -> Response:
        """A whole answer, or what begins as a stream and is one."""
        beats = self.beats(self.number("ttft_ms"))
        if "content_type" not in self.settings and self.get("heartbeat") == "none":
            return plain
        hangs = plain.end == "open"
        pieces = beats + [Block(plain.wire)] * bool(plain.wire) + self.beats_of_a_hang() * hangs
        kind = dict(plain.headers)["content-type"] or "text/event-stream; charset=utf-8"
        headers = (
            ("content-type", self.get("content_type", kind)),
            ("cache-control", "no-cache"),
            ("content-length", None),
            ("transfer-encoding", "chunked"),
        )
        wire = self.framed(pieces) + b"0\r\n\r\n" * (plain.end == KEEP)
        infinite_pieces = (
            hangs and self.get("heartbeat") != "none" and self.get("beats") in {"none", "unlimited"}
        )
        return Response(wire, plain.end, 200, headers, infinite_pieces=infinite_pieces)

    def no_stream(self, end: str) -> Response:
        status = self.number("status", 200)
        kind = self.get("body", "json") if status != 200 else self.get("answer_as")
        code = self.get("code", str(status if status != 200 else 500))
        error: dict[str, object] = {
            "message": self.get("message", TEXT),
            "type": self.get("type", "rate_limit_error" if status == 429 else "server_error"),
        }
        if kind != "flat":
            error["param"] = None
        if code != "absent":
            error["code"] = None if code == "null" else int(code) if code.isdigit() else code
        title = status if status != 200 else 502
        html = f"<html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>\n"
        if kind == "json" and status == 200:
            body, content_type = self.whole(), "application/json"
        elif kind == "empty":
            body, content_type = b"", None
        elif kind == "html":
            body, content_type = html.encode(), "text/html"
        else:
            document = error if kind == "flat" else {"error": error}
            body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
            content_type = "application/json"
        headers = (
            ("content-type", content_type),
            ("content-length", None if status in {204, 304} else str(len(body))),
            ("transfer-encoding", None),
            ("retry-after", self.settings.get("retry_after", "").strip('"') or None),
        )
        return Response(body, end, status, headers)

    def whole(self) -> bytes:
        begins = self.answer.begins if self.get("restart", "false") == "false" else 0
        words = range(begins, begins + self.answer.words)
        text = "".join(word(self.stream.tag, index) for index in words)
        choice: dict[str, object] = {"index": 0}
        if self.stream.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice |= {"text": text, "logprobs": None}
        choice["finish_reason"] = self.answer.finish
        prompt, said = self.answer.prompt_tokens, self.answer.words
        document = {
            "id": self.stream.ident,
            "object": "chat.completion" if self.stream.chat else "text_completion",
            "created": self.stream.created,
            "model": self.stream.model,
            "choices": [choice],
            "usage": {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said},
        }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()

    # -- spelling

    def spelled(self, blocks: list[Block]) -> list[Block]:
        eol = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}[self.get("eol", "lf")].encode()
        found: list[Block] = []
        events = 0
        seen = False
        for block in blocks:
            if block.kind in {"fault", "padded"}:
                found.append(block)
                continue
            front = b"" if seen else self.front(eol)
            if seen and (comments := self.number("comments")):
                front = (b": inference-lab" + eol) * comments + eol
            seen = True
            lines, end = self.lines(block.data)
            if end == b"\n\n" and not block.data.startswith(b":"):
                fields = [b"id: %d" % events] if self.get("id", "false") == "true" else []
                if events == 0 and self.get("retry").isdigit():
                    fields.append(b"retry: " + self.get("retry").encode())
                lines = fields + lines
                events += 1
            data = eol.join(lines) + end.replace(b"\n", eol)
            if block.kind == "torn":
                data = self.torn(data)
            found.append(Block(front + data))
        if self.get("final_blank", "true") == "false":
            last = max(index for index, block in enumerate(found) if block.kind == "frame")
            found[last] = Block(found[last].data.removesuffix(eol))
        return found

    def front(self, eol: bytes) -> bytes:
        mark = b"\xef\xbb\xbf" if self.get("bom", "false") == "true" else b""
        return mark + (b"retry: 3000" + eol + eol if self.get("retry") == "alone" else b"")

    def lines(self, data: bytes) -> tuple[list[bytes], bytes]:
        end = b"\n\n" if data.endswith(b"\n\n") else b"\n"
        written: list[bytes] = []
        for line in data.removesuffix(end).split(b"\n"):
            if line.startswith(b"data: "):
                field = b"data: " if self.get("space", "true") == "true" else b"data:"
                written += [field + part for part in self.payload(line[6:])]
            else:
                written.append(line)
        return written, end

    def payload(self, text: bytes) -> list[bytes]:
        python, lines = self.get("spacing", "compact") == "python", self.number("multiline", 1)
        try:
            document = json.loads(text)
        except ValueError:
            return [text]
        if lines > 1:
            indented = json.dumps(
                document, ensure_ascii=False, indent=1, separators=(",", ": " if python else ":")
            )
            split = indented.encode().split(b"\n")
            joined = b" ".join(part.strip(b" ") for part in split[lines - 1 :])
            parts = [*split[: lines - 1], joined]
            return parts + [b""] * (lines - len(parts))
        return [json.dumps(document, ensure_ascii=False).encode()] if python else [text]

    def torn(self, data: bytes) -> bytes:
        kind, _, number = self.get("tear").partition(":")
        if kind == "byte":
            return data[: int(number)]
        if kind == "utf8":
            return data[: max(data.rfind("é".encode()), data.rfind("É".encode())) + 1]
        cut = len(data) // 2
        while 0x80 <= data[cut] < 0xC0:
            cut -= 1
        return data[:cut]

    # -- from frames to bytes

    def coded(self, blocks: list[Block]) -> list[Block]:
        encoding = self.get("encoding")
        if encoding == "none":
            return blocks
        found: list[Block] = []
        head = bytes.fromhex("1f8b08000000000000ff")
        plain = b""
        for block in blocks:
            if block.kind == "fault":
                found.append(block)
                continue
            plain += block.data
            size = struct.pack("<H", len(block.data))
            stored = b"\0" + size + bytes(255 - byte for byte in size) + block.data
            found.append(Block(head + stored))
            head = b""
        if encoding != "gzip_truncated":
            end = bytes.fromhex("010000ffff") + struct.pack("<II", zlib.crc32(plain), len(plain))
            found.append(Block(head + end))
        return found

    def segments(self, blocks: list[Block]) -> list[Block]:
        kind = self.get("segment", "frame")
        if kind == "frame":
            return blocks
        frames = [block.data for block in blocks if block.kind == "frame"]
        if kind == "whole":
            return [Block(b"", "fault"), Block(b"".join(frames))] if frames else [Block(b"", "fault")]
        if kind.isdigit():
            joined = [b"".join(frames[i : i + int(kind)]) for i in range(0, len(frames), int(kind))]
            return [Block(b"", "fault"), *map(Block, joined)]
        found: list[Block] = []
        for block in blocks:
            if block.kind == "fault":
                found.append(block)
            elif kind == "byte":
                found += [Block(bytes([byte])) for byte in block.data]
            else:
                marked = block.data.replace(b"\r\n", b"\r\0\n") if kind == "crlf" else block.data
                if kind == "utf8":
                    for accent in ("é", "É"):
                        raw = accent.encode()
                        marked = marked.replace(raw, raw[:1] + b"\0" + raw[1:])
                parts = _split_back(block.data, marked)
                found += map(Block, parts)
        return found

    def framed(self, pieces: Iterable[Block]) -> bytes:
        error = self.get("chunk_error")
        wire = b""
        for piece in pieces:
            if piece.kind != "fault":
                wire += b"%x\r\n" % len(piece.data) + piece.data + b"\r\n"
            elif error == "bad_size":
                wire += b"zz\r\n"
            elif error == "no_crlf":
                wire = wire.removesuffix(b"\r\n")
            elif error == "response_inside":
                wire += b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\n"
                wire += b"content-length: 15\r\n\r\n502 Bad Gateway"
        return wire

    def last(self, close: str) -> bytes:
        if self.get("chunk_error") == "trailer":
            return b"0\r\nx-inference-lab-trailer: late\r\n\r\n"
        if close in {"terminator", "terminator_rst", "idle_close", "stale"}:
            return b"0\r\n\r\n"
        return {"partial_terminator": b"0\r\n", "torn_chunk": b'200\r\ndata: {"id":"'}.get(close, b"")


def _split_back(data: bytes, marked: bytes) -> list[bytes]:
    """Cut `data` where `marked` has a NUL more; a content coding may hold NULs of its own."""
    parts: list[bytes] = []
    start = place = 0
    for byte in marked:
        if byte == 0 and (place >= len(data) or data[place] != 0):
            parts.append(data[start:place])
            start = place
        else:
            place += 1
    return [*parts, data[start:]]
