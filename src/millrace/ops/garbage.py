"""Cycle collection without long pauses.

In: time. Out: short collections. A broker holds hundreds of objects per partition for as long as it runs, a capture as
many per table. The interpreter's own full collection looks at all of them, at ten thousand partitions for a third of a
second, in which no request is answered and no heartbeat leaves. Here whatever has survived a collection is set aside
(`gc.freeze`), so the next one looks only at what came since. Once in a while all is looked at: cycles among what was
set aside are rare (deleted topics, closed connections), not absent.
"""

from __future__ import annotations

import asyncio
import gc

from millrace.ops.naps import next_look

LOOK_S = 1.0
ALL_S = 6 * 3600.0
YOUNG, MIDDLE = 5_000, 10     # a middle collection every 50,000 objects that stay
NEVER = 1_000_000             # middle collections before the interpreter itself looks at everything


class Garbage:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before = gc.get_threshold()
        self._all_at = self._loop.time() + ALL_S
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _look(self) -> None:
        now = self._loop.time()
        self._timer = self._loop.call_at(next_look(now, LOOK_S), self._look)
        if now >= self._all_at:
            self._all_at = now + ALL_S
            gc.unfreeze()
        elif not gc.get_count()[2]:
            return               # no middle collection since the last time: nothing to speak of has come
        gc.collect()
        gc.freeze()
