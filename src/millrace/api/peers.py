"""Asking the other brokers over HTTP, for views that need every broker's own word."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from millrace.model.records import Endpoint

ANSWER_BYTES_MAX = 16 << 20
PEER_S = 1.0


async def get_json(endpoint: Endpoint, path: str) -> Any | None:
    """What the broker answers, or None: a view says "unknown" rather than wait for a broker that is gone."""
    try:
        async with asyncio.timeout(PEER_S):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.http_port, limit=ANSWER_BYTES_MAX)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {endpoint.host}\r\n\r\n".encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    if head.split(b" ", 2)[1:2] != [b"200"]:
        return None
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
