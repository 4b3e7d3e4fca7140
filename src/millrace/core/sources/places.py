"""Where the changes of a source's tables stand, as far as the stream was read [S3].

In: the place of every change, in the order of the stream. Out: the place of a marker that the stream gives none.
Promise: the same for every reader of the same WAL, wherever it began: streams begin with whole transactions.
"""

from __future__ import annotations

from millrace.model.tables import NOWHERE, Lsn, Oid, Place


class LastPlaces:
    """The last change of each table."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Oid, Place] = {}

    def note(self, oid: Oid, place: Place) -> Place:
        self._last[oid] = place
        return place

    def behind(self, oid: Oid, commit_lsn: Lsn) -> Place:
        """Of a drop, told by a message inside the transaction: no change of the table comes behind it, so its seq is
        the next one there."""
        last = self._last.get(oid, NOWHERE)
        return Place(commit_lsn, last.seq + 1 if last.commit_lsn == commit_lsn else 0)
