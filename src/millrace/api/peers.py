"""Asking the other processes over HTTP, for views that need each one's own word. Every question carries the proof that
a process of this cluster asks it [A10]."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from millrace.api.proof import Sent, prove
from millrace.errors import Unreachable
from millrace.log.broker import Broker
from millrace.model.records import Endpoint

ANSWER_BYTES_MAX = 16 << 20
PEER_S = 1.0


async def get_json(broker: Broker, endpoint: Endpoint, path: str) -> Any | None:
    """What the other broker answers, or None: a view says "unknown" rather than wait for a broker that is gone."""
    try:
        return await ask(endpoint.host, endpoint.http_port, path, broker.config.http_key)
    except Unreachable:
        return None


async def ask(host: str, port: int, path: str, key: bytes) -> Any:
    """What it answers. Unreachable: nothing within a second, or no; the message says which."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    proof = prove(key, Sent("GET", where, path), time.time())
    try:
        async with asyncio.timeout(PEER_S):
            reader, writer = await asyncio.open_connection(host, port, limit=ANSWER_BYTES_MAX)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {where}\r\nAuthorization: {proof}\r\n\r\n".encode())
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unreachable(f"{where} broke off") from None
    if status != [b"200"]:
        said = answer.get("error_msg") if isinstance(answer, dict) else None
        raise Unreachable(f"{where} says no: {said or status}")
    return answer
