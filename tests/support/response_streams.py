"""The events of a response of two words, written out: what a stream of `POST /v1/responses` is, to the byte."""

from __future__ import annotations

NAME = "DeepSeek-V4-Flash"
DIGITS = "e543f5ba574e4bacf370372b"


def event(kind: str, members: str) -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}",{members}}}\n\n'


def made(digits: str, status: str, output: str = "", usage: str = "null", *, error: str = "null") -> str:
    return (
        f'{{"id":"resp_{digits}","object":"response","created_at":1700000000,"status":"{status}","error":{error},'
        f'"incomplete_details":null,"instructions":null,"max_output_tokens":null,"model":"{NAME}","output":[{output}],'
        '"parallel_tool_calls":true,"previous_response_id":null,"reasoning":{"effort":null,"summary":null},'
        '"store":false,"temperature":1.0,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":1.0,'
        f'"truncation":"disabled","usage":{usage},"metadata":{{}}}}'
    )


def opening(digits: str) -> str:
    response = made(digits, "in_progress")
    return "".join(
        event(f"response.{kind}", f'"response":{response},"sequence_number":{number}')
        for number, kind in enumerate(("created", "in_progress"))
    )


def message(digits: str, status: str, text: str) -> str:
    content = f'{{"type":"output_text","annotations":[],"logprobs":[],"text":"{text}"}}' if text else ""
    return f'{{"id":"msg_{digits}","type":"message","status":"{status}","content":[{content}],"role":"assistant"}}'


def two_words(digits: str) -> str:
    where = f'"item_id":"msg_{digits}"'
    part = '{"type":"output_text","annotations":[],"logprobs":[],"text":""}'
    item = message(digits, "in_progress", "")
    return (
        event("response.output_item.added", f'"item":{item},"output_index":0,"sequence_number":2')
        + event(
            "response.content_part.added",
            f'"content_index":0,{where},"output_index":0,"part":{part},"sequence_number":3',
        )
        + "".join(
            event(
                "response.output_text.delta",
                f'"content_index":0,"delta":"{word}",{where},"logprobs":[],"output_index":0,"sequence_number":{number}',
            )
            for number, word in ((4, "dx0000"), (5, " dx0001"))
        )
    )


def closings(digits: str) -> str:
    where = f'"item_id":"msg_{digits}"'
    part = '{"type":"output_text","annotations":[],"logprobs":[],"text":"dx0000 dx0001"}'
    item = message(digits, "completed", "dx0000 dx0001")
    return (
        event(
            "response.output_text.done",
            f'"content_index":0,{where},"logprobs":[],"output_index":0,"sequence_number":6,"text":"dx0000 dx0001"',
        )
        + event(
            "response.content_part.done",
            f'"content_index":0,{where},"output_index":0,"part":{part},"sequence_number":7',
        )
        + event("response.output_item.done", f'"item":{item},"output_index":0,"sequence_number":8')
    )


def completed(digits: str) -> str:
    usage = (
        '{"input_tokens":10,"input_tokens_details":{"cache_write_tokens":0,"cached_tokens":0},"output_tokens":2,'
        '"output_tokens_details":{"reasoning_tokens":0},"total_tokens":12}'
    )
    response = made(digits, "completed", message(digits, "completed", "dx0000 dx0001"), usage)
    return event("response.completed", f'"response":{response},"sequence_number":9')


HEALTHY = opening(DIGITS) + two_words(DIGITS) + closings(DIGITS) + completed(DIGITS)
