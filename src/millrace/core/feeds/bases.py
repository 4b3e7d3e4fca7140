"""With which copy a table begins in a changefeed, and where its stream goes on behind it [F10, S4, S5].

    copies of the table, where each partition's log starts ─▶ base ─▶ the copy and its offsets
                                                                └──▶ None: the table must be copied first

In: what `progress` tells of copies, log starts. Out: a base. Promise: whoever has put the rows of the base's copy and
then all changes from its offsets on has the table as it is; nothing of either was gone when the log starts were read.
A window of a table without a key replaces the table, which a stream cannot say [decision 8]: it is no base.
Where all of the log is there a changefeed begins as it always did: at its start, with the table's first copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from millrace.core.delivery.copies import Book, Copies
from millrace.core.delivery.source_marks import At
from millrace.core.feeds.captures import NO_FLAWS

FLAWS = {
    "base_cut": "a table begins where its log starts now, although what was before is gone [F10]",
}


class Base(NamedTuple):
    """`offsets`: of the partitions that were asked for. `number`: of the record of `progress` from which on its
    schema changes stand behind these. `skipped`: copies of which nothing is put. `at`: where it is complete, None: at
    the log's start."""

    offsets: Mapping[int, int]
    number: int = 0
    at: At | None = None
    skipped: tuple[Book, ...] = ()


def base(
    copies: Copies, books: Sequence[Book], *, starts: Mapping[int, int], whole: Mapping[int, bool],
    floors: Mapping[int, int] | None = None, since: int = 0, keyless: Collection[int] = (), behind: int | None = None,
    flaws: frozenset[str] = NO_FLAWS,
) -> Base | None:
    """`books`: of the table, for this changefeed. `starts`: of its partitions' logs. `whole`: copies of which all is
    there; of others nothing is put. `floors`: a table that was renamed into the rules, by record `since`, begins behind
    these offsets, without a copy; or with one from later. `keyless`: copies of the table as it was without a key.
    `behind`: the table broke at this record, and begins with a copy that was told later, or not at all [S12]."""
    alive = [book for book in books if not copies.is_void(book)]
    cut = tuple(book for book in alive if not whole[book.number])
    if "base_cut" in flaws:
        return Base(dict(starts))
    if behind is not None:
        since = max(since, behind + 1)
    elif floors is not None and all(start <= floors.get(partition, 0) for partition, start in starts.items()):
        return Base({partition: floors.get(partition, 0) for partition in starts}, skipped=cut)
    if behind is None and floors is None and not any(starts.values()) and all(whole[book.number] for book in alive[:1]):
        return Base(dict.fromkeys(starts, 0), skipped=cut)
    for count, book in enumerate(alive):
        found = {partition: copies.beginning(book, partition) for partition in starts}
        offsets = {partition: offset for partition, offset in found.items() if offset is not None}
        is_put = book.is_snapshot or book.number not in keyless
        if _is_all(book) and is_put and whole[book.number] and book.offset >= since and len(offsets) == len(starts) \
                and all(starts[partition] <= offset for partition, offset in offsets.items()):
            skipped = (*alive[:count], *(later for later in alive[count:] if later in cut))
            return Base(offsets, book.offset, At(book.generation, book.known_before), skipped)
    return None


def _is_all(book: Book) -> bool:
    return book.started is not None and book.started.whole and not book.is_closed
