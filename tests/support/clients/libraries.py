"""The five clients, each used as its documentation shows, with retries off and a limit on silence.

The HTTP libraries and curl read a body to its end, which is how a late death shows; the SDK stops where it wants to.
No proxy and no settings of whoever runs this take part.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import httpx
import openai
import requests

from tests.support.clients.observation import Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_PROCESS_S: Final = 60
# No meeting speaks TLS, and reading the CA certificates anew for each client would be half of all the work.
_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True, slots=True)
class Ask:
    """What to ask for, and how many seconds of silence to bear."""

    url: str
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    patience: float


def _through_openai(ask: Ask, answers: Iterable[Observation]) -> None:
    with openai.OpenAI(
        api_key="none",
        base_url=f"{ask.url}/v1",
        max_retries=0,
        timeout=ask.patience,
        http_client=openai.DefaultHttpxClient(trust_env=False, verify=_NO_TLS),
    ) as client:
        create: Any = client.chat.completions.create if ask.path == CHAT else client.completions.create
        for answer in answers:
            with answer.reading():
                for chunk in create(**ask.body, extra_headers=ask.headers):
                    answer.chunk(chunk.to_dict(warnings=False))


def _through_httpx(ask: Ask, answers: Iterable[Observation]) -> None:
    with httpx.Client(base_url=ask.url, trust_env=False, verify=_NO_TLS, timeout=ask.patience) as client:
        for answer in answers:
            with (
                answer.reading(),
                client.stream("POST", ask.path, json=ask.body, headers=ask.headers) as response,
            ):
                response.raise_for_status()
                for line in response.iter_lines():
                    answer.line(line)


def _through_aiohttp(ask: Ask, answers: Iterable[Observation]) -> None:
    async def read() -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=ask.patience)
        async with aiohttp.ClientSession(ask.url, timeout=timeout) as session:
            for answer in answers:
                with answer.reading():
                    async with session.post(ask.path, json=ask.body, headers=ask.headers) as response:
                        response.raise_for_status()
                        async for line in response.content:
                            answer.line(line.decode())

    asyncio.run(read())


def _through_requests(ask: Ask, answers: Iterable[Observation]) -> None:
    with requests.Session() as session:
        session.trust_env = False
        for answer in answers:
            with (
                answer.reading(),
                session.post(
                    ask.url + ask.path, json=ask.body, headers=ask.headers, timeout=ask.patience, stream=True
                ) as response,
            ):
                response.raise_for_status()
                for line in response.iter_lines():
                    answer.line(line.decode())


def _through_curl(ask: Ask, answers: Iterable[Observation]) -> None:
    """One process for all answers. curl has no limit on silence, only one on the whole answer."""
    *others, last = answers
    fields = [part for key, value in ask.headers.items() for part in ("-H", f"{key}: {value}")]
    one = ["-sN", "--noproxy", "*", "--max-time", str(ask.patience), ask.url + ask.path, *fields]
    one += ["-d", json.dumps(ask.body)]
    command = ["curl", "-q", *([*one, "-o", os.devnull, "--next"] * len(others)), *one]
    with last.reading():
        done = subprocess.run(command, capture_output=True, timeout=_PROCESS_S, check=False)
        for line in done.stdout.decode().splitlines():
            last.line(line)
        last.end = f"exit {done.returncode}"


CLIENTS: Final[Mapping[str, Callable[[Ask, Iterable[Observation]], None]]] = {
    "openai": _through_openai,
    "httpx": _through_httpx,
    "aiohttp": _through_aiohttp,
    "requests": _through_requests,
    "curl": _through_curl,
}


def observe(client: str, ask: Ask, times: int = 1) -> Observation:
    """What a client makes of an answer; of several, asked for one after the other by one client, of the last."""
    answers = [Observation() for _ in range(times)]
    CLIENTS[client](ask, answers)
    return answers[-1]
