"""The data path in memory keeps what the real one promises, and finds who breaks it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from millrace.changefeed.feeds.ports import Work
from millrace.model.changefeeds import DdlPosition, FeedError
from millrace.model.spans import Dispatcher, Span, SpanId
from support_feeds import MemoryDispatching, Target, until

PART = next(part for part, rows in Target("f").data.log.items() if rows and rows[0][1] is None)     # begins with a row
SPAN = Span(PART.table, (PART.partition,))


class AllFree:
    """Rounds without a manager: everything is free until it is begun."""

    def __init__(self, *works: Work) -> None:
        self.works, self.busy, self.done = works, set[Dispatcher](), 0

    def free(self) -> list[Work]:
        return [work for work in self.works if work.dispatcher not in self.busy]

    def begin(self, span_ids: Iterable[SpanId]) -> tuple[Dispatcher, ...]:
        begun = tuple(work.dispatcher for work in self.works if work.dispatcher.span in set(span_ids))
        self.busy.update(begun)
        return begun

    def is_present(self, dispatcher: Dispatcher) -> bool:
        return True

    def ended(self, dispatcher: Dispatcher, *, error: FeedError | None = None) -> None:
        self.busy.discard(dispatcher)
        self.done += 1

    def unknown(self, dispatcher: Dispatcher) -> None:
        raise AssertionError("it always knows")


def test_a_take_over_needs_a_greater_epoch_and_the_former_owner_writes_nothing() -> None:
    target = Target("f")
    target.advance(59)
    assert target.take_over(SPAN.parts, 5, "a") == {PART: 0}
    assert target.take_over(SPAN.parts, 5, "b") is None
    assert target.take_over(SPAN.parts, 4, "b") is None
    assert target.round(PART, 5, 0)
    written = target.data.written[PART]
    assert target.take_over(SPAN.parts, 6, "b") == {PART: written}
    next_ = target.data.next[PART]
    target.round(PART, 5, 0)
    assert (target.data.written[PART], target.data.next[PART]) == (written, next_)
    assert target.owners() == [("a", 5), ("b", 6)]
    assert target.found() == []


def test_an_epoch_of_two_users_and_a_change_out_of_order_are_violations() -> None:
    target = Target("f")
    other = next(part for part in target.data.log if part != PART)
    target.take_over(SPAN.parts, 5, "a")
    target.take_over((other,), 5, "b")
    assert "V9" in target.found()[0]
    target.advance(59)
    late = [c for c in target.data.changes if c.kind == "alter"][-1]
    assert not target.write_change(9, late.tables[0], late.number)
    assert "C7" in target.found()[1]


def test_closed_positions_stay_closed_and_a_removed_changefeed_is_not_taken_over() -> None:
    target = Target("f")
    assert target.close(SPAN.parts, 7)
    assert target.close(SPAN.parts, 7)
    assert not target.close(SPAN.parts, 6)
    target.remove(9)
    assert target.greatest(SPAN.parts) == 9
    assert target.take_over(SPAN.parts, 8, "a") is None
    assert target.found() == []
    assert target.take_over(SPAN.parts, 10, "a") is None
    assert "after it was removed" in target.found()[0]


def test_the_ddl_position_is_taken_and_committed_by_compare_and_set() -> None:
    target = Target("f")
    taken = target.take_ddl(3)
    assert taken is not None
    assert target.take_ddl(3) is None
    assert not target.commit_ddl(DdlPosition(2, 0), DdlPosition(2, 1))
    assert target.commit_ddl(taken.position, DdlPosition(3, 1))


def test_rounds_are_written_until_stop() -> None:
    async def story() -> None:
        target = Target("f")
        dispatching = MemoryDispatching({"f": target}, "me")
        work = Work("f", Dispatcher(0, 4), SPAN)
        rounds = AllFree(work)
        dispatching.prepare(work)
        assert target.owners() == []
        assert await dispatching.start(work, rounds)
        assert not await dispatching.start(work, rounds)
        target.advance(59)
        await until(lambda: rounds.done > 3 and target.data.next[PART] > 0)
        assert dispatching.report("f").epochs == {0: 4}
        dispatching.stop(work)
        assert not dispatching.taken
        await until(lambda: dispatching.report("f")[:2] == (0, {}))
        await dispatching.close()
        assert target.found() == []

    asyncio.run(story())
