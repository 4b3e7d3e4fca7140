"""Many records into an office: split into appends of the size that a store takes.

In: encoded records. Out: runs of them, in order. A writer that fails between two runs has written a prefix of what it
decided: each record stands for itself, the next holder goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millrace import limits


def in_appends(records: Sequence[bytes]) -> Iterator[list[bytes]]:
    run: list[bytes] = []
    size_bytes = 0
    for record in records:
        full = len(run) == limits.RECORDS_PER_APPEND_MAX or size_bytes + len(record) > limits.STORE_APPEND_BYTES_MAX
        if run and full:
            yield run
            run, size_bytes = [], 0
        run.append(record)
        size_bytes += len(record)
    if run:
        yield run
