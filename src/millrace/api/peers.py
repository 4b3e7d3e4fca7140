"""Asking the other processes over HTTP, for views that need each one's own word."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from millrace.errors import Unreachable
from millrace.model.records import Endpoint

ANSWER_BYTES_MAX = 16 << 20
PEER_S = 1.0


async def get_json(endpoint: Endpoint, path: str) -> Any | None:
    """What the broker answers, or None: a view says "unknown" rather than wait for a broker that is gone."""
    try:
        return await ask(endpoint.host, endpoint.http_port, path)
    except Unreachable:
        return None


async def ask(host: str, port: int, path: str) -> Any:
    """What it answers. Unreachable: nothing within a second, or no; the message says which."""
    where = f"{host}:{port}"
    try:
        async with asyncio.timeout(PEER_S):
            reader, writer = await asyncio.open_connection(host, port, limit=ANSWER_BYTES_MAX)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except TimeoutError:
        raise Unreachable(f"{where} does not answer within {PEER_S:g} s") from None
    except OSError as error:
        raise Unreachable(f"{where} does not answer: {error.strerror or error}") from None
    status = head.split(b" ", 2)[1:2]
    try:
        answer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise Unreachable(f"{where} broke off") from None
    if status != [b"200"]:
        said = answer.get("error_msg") if isinstance(answer, dict) else None
        raise Unreachable(f"{where} says no: {said or status}")
    return answer
