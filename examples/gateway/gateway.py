"""A gateway that hides a dying stream: it asks for the rest of the answer, and splices it on. It has a bug."""

import json

from aiohttp import ClientError, ClientSession, web

CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}


def gateway(upstream: str) -> web.Application:
    async def chat(request: web.Request) -> web.StreamResponse:
        ask = leg = await request.json()
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        chunks = []
        for _attempt in range(5):
            try:
                async with ClientSession(upstream) as client, client.post(request.path, json=leg) as stream:
                    async for line in stream.content:
                        chunk = json.loads(line[6:]) if line.startswith(b"data: {") else None
                        if chunk is None or (chunks and "role" in chunk["choices"][0]["delta"]):
                            continue
                        chunks.append(chunk | {"id": chunks[0]["id"] if chunks else chunk["id"]})
                        await answer.write(b"data: %b\n\n" % json.dumps(chunks[-1]).encode())
                break
            except ClientError:
                whole = chunks[:-1]  # the last one may be torn
                said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in whole)
                leg = (
                    ask | CONTINUE | {"messages": [*ask["messages"], {"role": "assistant", "content": said}]}
                )
        await answer.write(b"data: [DONE]\n\n")
        return answer

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    return app
