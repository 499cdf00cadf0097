"""What the gateway's users would see when a stream dies under it."""

import asyncio

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from gateway import gateway


async def ask(upstream: str, message: dict[str, str]) -> bytes:
    async with TestServer(gateway(upstream)) as server, ClientSession() as client:
        body = {"model": "lab", "stream": True, "messages": [message]}
        async with client.post(server.make_url("/v1/chat/completions"), json=body) as answer:
            return await answer.read()


@pytest.mark.parametrize("fault", ["cut_between_frames;after_chunks=5", "cut_mid_frame;after_chunks=5"])
def test_a_death_does_not_show(inference_lab, fault):
    answer = asyncio.run(ask(inference_lab.url, inference_lab.prompt("hello", fault=fault)))
    assert inference_lab.verify(answer, tokens=48).is_whole
