"""What a capture looks at every so often, it looks at in the moments of everything else of its process (ops.naps)."""

from __future__ import annotations

import asyncio

from millrace.ops.naps import next_look


async def until_look(period_s: float) -> None:
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(next_look(now, period_s) - now)
