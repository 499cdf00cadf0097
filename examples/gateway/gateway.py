"""A gateway that hides a dying stream: it asks for the rest of the answer, and splices it on. It has a bug."""

import asyncio
import json
import time
from contextlib import aclosing

from aiohttp import ClientError, ClientSession, web

CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
LIMITS = ("max_tokens", "max_completion_tokens")
ENDS = {"stop", "length", "tool_calls"}  # any other finish is a death
MOST_LEGS = 5


class RefusedError(Exception):
    """Upstream has answered with something else than a stream; `response` is the same for our client."""

    def __init__(self, stream, body):
        self.response = web.Response(status=stream.status, body=body)
        for name in {"content-type", "retry-after"} & {name.lower() for name in stream.headers}:
            self.response.headers[name] = stream.headers[name]


def gateway(upstream: str, silence_s: float = 2) -> web.Application:
    async def chat(request: web.Request) -> web.StreamResponse:
        ask = await request.json()
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        told, finished = [], False  # what our client has, and whether that is the whole answer
        async with ClientSession(upstream) as client:
            for _leg in range(MOST_LEGS):
                try:
                    async with aclosing(rest(client, request.path, ask, told, silence_s)) as chunks:
                        async for chunk in chunks:
                            if not answer.prepared:
                                await answer.prepare(request)
                            await answer.write(b"data: %b\n\n" % json.dumps(chunk).encode())
                            told.append(chunk)
                            finished |= any(choice.get("finish_reason") for choice in chunk["choices"])
                except RefusedError as refusal:
                    if not told:
                        return refusal.response
                    break
                if finished or request.transport is None:  # None: our client has left
                    break
        if not told:
            return web.json_response({"error": {"message": "upstream died", "code": 502}}, status=502)
        last = b"[DONE]" if finished else b'{"error":{"message":"upstream died","code":502}}'
        await answer.write(b"data: %b\n\n" % last)
        return answer

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    return app


async def rest(client, path, ask, told, silence_s):
    """One leg's chunks as the rest of what our client has been told; none after the leg's death."""
    try:
        leg, prompt, spent = await request_for(client, ask, told)
        if 0 in (leg.get(limit) for limit in LIMITS):  # it died after its last token: only its end is missing
            yield told[0] | {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
            usage = {"prompt_tokens": prompt, "completion_tokens": spent, "total_tokens": prompt + spent}
            if (ask.get("stream_options") or {}).get("include_usage"):
                yield told[0] | {"choices": [], "usage": usage}
            return
        async with client.post(path, json=leg) as stream:
            if stream.status != 200 or stream.content_type != "text/event-stream":
                raise RefusedError(stream, await stream.read())
            async for chunk in chunks_of(stream.content, silence_s):
                if told:
                    chunk |= {key: told[0][key] for key in ("id", "created")}
                    for choice in chunk["choices"]:
                        choice["delta"].pop("role", None)
                if usage := chunk.get("usage"):
                    usage["prompt_tokens"] -= spent
                    usage["completion_tokens"] += spent
                yield chunk
    except (ClientError, asyncio.TimeoutError, ValueError):  # ValueError: a line without end
        return


async def request_for(client, ask, told):
    """What to ask for next, how many tokens the client's prompt has, and how many of the answer come after it."""
    message = message_of(told[:-1])  # the last one may be torn
    if message is None:
        return ask, 0, 0
    leg = ask | CONTINUE | {"messages": [*ask["messages"], message]}
    prompt = await tokens_of(client, ask)
    spent = await tokens_of(client, leg) - prompt
    return leg | {limit: max(0, ask[limit] - spent) for limit in LIMITS if ask.get(limit)}, prompt, spent


async def tokens_of(client, ask):
    async with client.post("/tokenize", json=ask) as counted:
        return (await counted.json())["count"]


def message_of(chunks):
    """What chunks say, as the beginning of an assistant's message; None where they say nothing."""
    texts, calls = {}, {}
    for delta in (choice["delta"] for chunk in chunks for choice in chunk["choices"]):
        for key in ("reasoning_content", "content"):
            if delta.get(key):
                texts[key] = texts.get(key, "") + delta[key]
        for part in delta.get("tool_calls") or ():
            function = {"name": "", "arguments": ""} | part["function"]
            call = calls.setdefault(part["index"], part | {"function": function | {"arguments": ""}})
            call["function"]["arguments"] += function["arguments"]
    if calls:
        texts["tool_calls"] = list(calls.values())
    return {"role": "assistant", **texts} if texts else None


async def chunks_of(lines, silence_s):
    """A stream's chunks; none after its death, though it is read to its end. Signs of life are no answer."""
    died = False
    until = time.monotonic() + silence_s
    while line := await asyncio.wait_for(lines.readline(), until - time.monotonic()):
        if line.strip() == b"data: [DONE]":
            return
        if died or not line.startswith(b"data: {"):
            continue
        chunk = chunk_in(line)
        died = chunk is None
        if chunk and chunk.get("choices") is not None:
            yield chunk
            until = time.monotonic() + silence_s


def chunk_in(line):
    """What a line holds; None for a death: an error, a finish that is no end, or something that is no JSON."""
    try:
        chunk = json.loads(line[6:])
    except ValueError:
        return None
    finishes = {choice.get("finish_reason") or None for choice in chunk.get("choices") or ()} - {None}
    return None if "error" in chunk or chunk.get("object") == "error" or finishes - ENDS else chunk
