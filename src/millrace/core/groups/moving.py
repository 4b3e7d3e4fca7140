"""One call at the home of positions, decided [L21, P3]: what to append, what to reply, what must be committed before.

In: Positions as appended so far, a call. Out: a Moving, or the refusal raised. Nothing changes here.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace.core.delivery.positions import Commit, Move, Positions
from millrace.errors import PositionMissing
from millrace.model.groups import GroupRecord
from millrace.model.position_calls import (
    AnyPositionCall,
    ClaimPosition,
    ClosePosition,
    CommitPosition,
    CreatePosition,
    ForgetPosition,
    ReadPosition,
    ShowPosition,
    TakePosition,
)
from millrace.model.positions import Point, PositionKey, StoredPosition


class Moving(NamedTuple):
    """Without a record the reply waits until `after` is below the high watermark; with one it waits for the record."""

    record: GroupRecord | None
    reply: StoredPosition | None
    after: int = -1


def decide(positions: Positions, key: PositionKey, call: AnyPositionCall) -> Moving:
    match call:
        case ReadPosition():
            known = positions.by_key.get(key)
            if known is None:
                raise PositionMissing(f"no position of {key.changefeed}, {key.topic_id}/{key.partition}")
            return Moving(None, known.position, known.offset)
        case CreatePosition(epoch, offset, row, resolved, writer_id):
            at = Point(offset, row)
            return _moving(key, positions.create(key, epoch=epoch, at=at, resolved=resolved, writer_id=writer_id))
        case TakePosition(epoch, new_writer_id):
            return _moving(key, positions.take(key, epoch, new_writer_id=new_writer_id))
        case ClosePosition(epoch):
            return _moving(key, positions.close(key, epoch))
        case ForgetPosition(epoch):
            return Moving(GroupRecord(key, None) if positions.check_forget(key, epoch) else None, None)
        case ClaimPosition(claim):
            return _moving(key, positions.claim(key, claim))
        case CommitPosition():
            return _moving(key, positions.commit(key, _commit(call)))
        case ShowPosition(epoch, shown):
            return _moving(key, positions.show(key, epoch, shown))


def _commit(call: CommitPosition) -> Commit:
    from_, to = Point(call.from_offset, call.from_row), Point(call.to_offset, call.to_row)
    return Commit(call.epoch, from_, to, call.ends, call.resolved, call.shown)


def _moving(key: PositionKey, move: Move[StoredPosition] | Move[None]) -> Moving:
    record = GroupRecord(key, move.record) if move.record is not None else None
    return Moving(record, move.reply, move.after)
