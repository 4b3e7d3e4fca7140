"""What becomes of a change under a filter: a table, and nothing else.

The sink must end with exactly the rows that the filter takes. So an update may have to be told as an insert or as a
delete: what counts is whether the row was in before it and is in after it.

    before ╲ after │ in       │ out     │ unknown           of a row before a change only its key may be known
    ───────────────┼──────────┼─────────┼─────────          (REPLICA IDENTITY DEFAULT); a value of a row after it may
    in             │ update   │ delete  │ refused           not have been sent (TOAST)
    out            │ insert   │ nothing │ refused
    unknown        │ update   │ delete  │ refused           a delete of a row nobody has does no harm; a row that is
                                                            missing or stale would
    An insert is as if it was out before, a delete as if it were out after it. A key update is a delete and an insert
    in the log already, and each is judged by itself: a row may enter or leave by it as well.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Op(IntEnum):
    """As the log numbers them."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2


class Verdict(IntEnum):
    """Of one image of a row. A filter that is null does not take it, as in SQL."""

    OUT = 0
    IN = 1
    UNKNOWN = 2


class Outcome(IntEnum):
    """The first three are what the sink is told; the log's own numbers."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    NOTHING = 3
    REFUSED = 4


_BECOMES: Final[dict[Verdict, Outcome]] = {
    Verdict.IN: Outcome.INSERT, Verdict.OUT: Outcome.NOTHING, Verdict.UNKNOWN: Outcome.REFUSED}


def outcome(op: Op, before: Verdict, after: Verdict) -> Outcome:
    """`before` counts for updates and deletes, `after` for inserts and updates."""
    if op == Op.INSERT:
        return _BECOMES[after]
    if op == Op.DELETE:
        return Outcome.NOTHING if before == Verdict.OUT else Outcome.DELETE
    if after == Verdict.UNKNOWN:
        return Outcome.REFUSED
    if after == Verdict.OUT:
        return Outcome.NOTHING if before == Verdict.OUT else Outcome.DELETE
    return Outcome.INSERT if before == Verdict.OUT else Outcome.UPDATE


TABLE: Final = tuple(tuple(tuple(outcome(op, before, after) for after in Verdict) for before in Verdict) for op in Op)
