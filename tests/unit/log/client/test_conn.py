"""Connections of our own client: what is being opened has a deadline, too."""

from __future__ import annotations

import asyncio
import time

import pytest

from millrace import limits
from millrace.errors import Unreachable
from millrace.log.client.conn import Address, Connections
from millrace.ops.real import RealRandom
from support_secret import LOG_KEY


def test_L22_a_broker_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process: its kernel accepts the connection, nobody answers the proof. Metadata asks the next one."""
    monkeypatch.setattr(limits, "LINK_PROOF_S", 0.2)

    async def main() -> None:
        gone = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1 << 10):
                pass
            gone.set()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        connections = Connections("test", RealRandom(), LOG_KEY)
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        async with asyncio.timeout(20):
            with pytest.raises(Unreachable, match="no proof of the secret"):
                await connections.get(Address("127.0.0.1", port), "metadata")
            assert time.monotonic() - began >= 0.2
            await gone.wait()                      # nothing of it stays open
        await connections.close()
        server.close()

    asyncio.run(main())
