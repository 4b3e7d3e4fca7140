"""Which chunks run together: small ones share a worker and, on Spark, a job [S4].

    waiting, in order ──▶ packs: [small, small, small …] [large] [failed before] …     one place each

In: chunks that may run now, how large each was when it was planned, free places. Out: packs, and when a pack gives back
what it has not begun. Promise: the order of the chunks is kept; every chunk goes into one pack at most; a large chunk,
one of unknown size and one that failed before are alone, so that none holds up or takes down another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from millrace.core.sources.copies import ChunkId, Task
from millrace.limits import COPY_PACK_BYTES, COPY_PACK_CHUNKS, COPY_PACK_S


def packs(waiting: Sequence[Task], *, places: int, suspects: Collection[ChunkId] = ()) -> list[list[Task]]:
    """At most `places`. Few chunks are spread over all places. `suspects`: chunks whose last attempt failed."""
    if places <= 0:
        return []
    sociable = [0 <= task.span.bytes <= COPY_PACK_BYTES and ChunkId(task.copy, task.chunk) not in suspects
                for task in waiting]
    chunks_max = min(COPY_PACK_CHUNKS, math.ceil(sum(sociable) / places))
    made: list[list[Task]] = []
    is_open, kind, bytes_ = False, "", 0           # of the last pack
    for task, may_share in zip(waiting, sociable, strict=True):
        size = task.span.bytes
        if (is_open and may_share and task.kind == kind and len(made[-1]) < chunks_max
                and bytes_ + size <= COPY_PACK_BYTES):
            made[-1].append(task)
            bytes_ += size
        elif len(made) == places:
            break
        else:
            made.append([task])
            is_open, kind, bytes_ = may_share, task.kind, size
    return made


def gives_back_at(began: float) -> float:
    """When a pack whose first chunk began then gives back those that it has not begun."""
    return began + COPY_PACK_S
