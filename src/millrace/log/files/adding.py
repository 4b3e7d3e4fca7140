"""What batches mean for a log: refused, repeated, or added up.

In: parsed batches. Out: an error before anything is written, or everything derived from the log moved behind the write.
Promise: checks change nothing; adding up fails at nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.core.producers import Producers
from millrace.errors import CorruptBatch, InvalidRequest
from millrace.log.files.formats import HEADER_BYTES
from millrace.log.files.log_file import LogFile
from millrace.wire import records
from millrace.wire.records import BatchHeader

if TYPE_CHECKING:
    from millrace.log.files.partition_log import PartitionLog


def find_repeated(producers: Producers, headers: list[BatchHeader]) -> tuple[int, int] | None:
    """(first offset, end) of the batch if its producer sent it before. Raises what the producer is to be told."""
    for header in headers:
        if header.producer_id < 0:
            continue
        if len(headers) > 1:
            raise InvalidRequest("batches of a producer with an id come one per request and partition")
        found = producers.check(header.producer_id, header.producer_epoch, header.base_sequence, header.records_count)
        if found is not None:
            return found.offset, found.offset + header.last_offset_delta + 1
    return None


def refuse_unless_following(headers: list[BatchHeader], offset: int, epoch: int) -> None:
    """A leader's batches continue the follower's log, offset by offset, epochs never going back."""
    for header in headers:
        if header.base_offset != offset or header.leader_epoch < epoch:
            raise CorruptBatch(
                f"batch {header.base_offset} of epoch {header.leader_epoch} after {offset} of epoch {epoch}"
            )
        offset, epoch = header.next_offset, header.leader_epoch


def add_up(
    log: PartitionLog, view: memoryview | bytearray | bytes, headers: list[BatchHeader], epoch: int | None,
    file: LogFile, position: int,
) -> None:
    """The batches lie in `file` from `position` on: index, epochs, producers and the end follow.

    `epoch` None: that of each batch.
    """
    offset, newest, note = log.log_end, file.newest, file.index.note
    latest = log.epochs.latest()
    for header in headers:
        note(offset, position + header.position, newest)
        if header.max_timestamp > newest:
            newest = header.max_timestamp
        of = header.leader_epoch if epoch is None else epoch
        if of != latest:
            log.epochs.appended(of, offset)
            latest = of
        following = offset + header.last_offset_delta + 1
        if header.producer_id >= 0:
            log.producers.replay(
                header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence, offset,
                following - 1, header.max_timestamp, fence=records.is_fence(view, header),
            )
        offset = following
    file.newest = newest
    if file.first_ms < 0 and position == HEADER_BYTES:
        file.first_ms = headers[0].max_timestamp
    if newest > log.newest:
        log.newest = newest
    log.log_end = offset
