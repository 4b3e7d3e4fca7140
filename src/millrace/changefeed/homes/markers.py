"""Where markers of schema changes stand in a table's partitions: at a position, or from an offset on [C7].

In: partitions and offsets. Out: which change's marker is the first record there. A record that is not there yet is no
answer: ask again. Control records are stepped over, so a position before a fence stands at the marker behind it.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace import limits
from millrace.core.feeds.source_story import MarkerKey, marker_of
from millrace.errors import Malformed
from millrace.log.client import LogClient
from millrace.model.progress import Change, decode_progress
from millrace.wire.changes import HEADER_KEY, BatchKind, decode_header
from millrace.wire.records import Record

Where = tuple[str, int]


async def first_markers(
    client: LogClient, wanted: Mapping[Where, int], *, wait_s: float
) -> dict[Where, MarkerKey | None]:
    """None: the first record is no marker. Where nothing stands yet, the partition is left out; also where others have
    taken all the room, by large batches."""
    each = limits.HOME_LOOK_BYTES
    found = await client.fetch(wanted, wait_s=wait_s, bytes_max=each * len(wanted), each_bytes_max=each)
    return {where: marker_in(page.records[0]) for where, page in found.items() if page.records}


async def find_marker(client: LogClient, where: Where, start: int, marker: MarkerKey) -> int:
    """Its offset; waits until it stands there."""
    while True:
        page = (await client.fetch({where: start}, wait_s=1.0)).get(where)
        if page is None:
            continue
        for record in page.records:
            if marker_in(record) == marker:
                return record.offset
        start = page.next_offset


def marker_in(record: Record) -> MarkerKey | None:
    header = decode_header(bytes(dict(record.headers).get(HEADER_KEY) or b""))
    if header.kind != BatchKind.MARKER:
        return None
    change = decode_progress(bytes(record.value or b""))
    if not isinstance(change, Change):
        raise Malformed(f"marker {record.offset} is no change")
    return marker_of(change)
