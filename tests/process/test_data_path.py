"""Rows of a source's table topic in their targets, once, by way of the hosts of a changefeed on three real brokers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from millrace import limits
from millrace.core.delivery import takeover
from millrace.core.feeds.topic_claims import Claim
from millrace.model.changefeeds import DdlPosition, FeedError
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point
from millrace.model.progress import SchemaVersion
from millrace.model.rounds import TaskPlan, unknown, untried
from millrace.model.tables import TableSchema
from millrace.pipeline.rounds import Ending, NotStarted, Returned
from millrace.wire.records import Record
from support_cluster import Cluster
from support_data_path import Capture, LocalJobs, Make, Shop, lost, play, until
from support_mover import TABLE, insert

pytestmark = pytest.mark.timeout(60)
ROWS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error nobody waits for long."""
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.1)


async def bring(shop: Shop, table: TableSchema = TABLE) -> None:
    for partition in (0, 1):
        await shop.rows(partition, [insert(n) for n in range(ROWS)], table)
    await shop.mark()


async def stand(shop: Shop, capture: Capture, offset: int) -> None:
    async def they_do() -> bool:
        capture.place_again()
        return [await shop.at(partition) for partition in (0, 1)] == [Point(offset, 0)] * 2

    await until(they_do, f"both positions at {offset}")


async def assert_once(shop: Shop, *, offsets: Sequence[int], topic: str = "") -> None:
    wanted = ((p, Point(offset, row)) for p in (0, 1) for offset in offsets for row in range(ROWS))
    assert await shop.delivered(topic) == dict.fromkeys(wanted, 1)


def test_P2_V11_rows_arrive_once_through_rounds_a_stop_and_a_start_elsewhere(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        first = capture()
        first.start(2, (0, 1))
        first.stop()                                     # while it is being taken over
        await until(lambda: not first.host.machine.held, "the dispatcher is gone")
        first.start(3, (0, 1))
        await bring(shop)
        await stand(shop, first, 1)
        first.stop()
        await until(lambda: not first.host.machine.held, "the dispatcher is gone")
        second = capture()
        second.start(4, (0, 1))
        await bring(shop)
        await stand(shop, second, 2)
        await assert_once(shop, offsets=(0, 1))
        assert len((await shop.client.topic(shop.target)).partitions) == 2, "created as the sink says [K2]"

    play(cluster, story, partitions=2)


def test_P5_after_a_lost_job_whose_rows_were_written_nothing_is_doubled(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        def lose_first(ending: Ending) -> Ending:
            return lost(jobs.jobs[0], session_lost=True) if len(jobs.jobs) == 1 else ending

        jobs.after = lose_first
        here = capture()
        here.start(2, (0,), (1,))
        await until(lambda: len(here.host.free()) == 2, "both take-overs")
        await bring(shop)
        await stand(shop, here, 1)
        await assert_once(shop, offsets=(0,))
        assert here.epoch >= 6, "both were placed again"
        works = [sum(len(plan.works) for plan in job) for job in jobs.jobs]
        assert works == [2, 1, 1], "halved: one suspect at a time [P2]"

    play(cluster, story, partitions=2)


def test_P5_a_worker_that_dies_with_rows_written_leaves_them_once(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        jobs.kill_first = True
        here = capture()
        here.start(2, (0, 1))
        await bring(shop)
        await stand(shop, here, 1)
        await assert_once(shop, offsets=(0,))
        assert jobs.killed == 1

    play(cluster, story, partitions=2)


def test_C3_a_dispatcher_that_was_taken_over_elsewhere_goes_and_doubles_nothing(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        first, second = capture(), capture()
        first.start(2, (0, 1))
        await bring(shop)
        await stand(shop, first, 1)
        second.start(3, (0, 1))                          # nobody has told the first one
        await until(lambda: len(second.host.free()) == 1, "the take-over")
        await bring(shop)
        await stand(shop, second, 2)
        await until(lambda: not first.host.machine.held, "the first one has seen it")
        await assert_once(shop, offsets=(0, 1))

    play(cluster, story, partitions=2)


def test_K3_C3_an_idle_dispatcher_moves_its_ends_up_and_sees_that_it_was_taken_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ENDS_LOOK_S", 0.1)
    monkeypatch.setattr(takeover, "ENDS_REFRESH_S", takeover.ENDS_LOOK_S + 0.2)
    monkeypatch.setattr(limits, "LOOK_AROUND_S", 0.5)

    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        first, second = capture(), capture()
        first.start(2, (0, 1))
        await bring(shop)
        await stand(shop, first, 1)
        target = TopicPartition((await shop.client.topic(shop.target)).id, 1)
        end = 1 + await shop.client.append(shop.target, target.partition, [Record(b"a stranger's")])

        async def moved() -> bool:
            return [(await shop.position(p)).ends_by_target[target] for p in (0, 1)] == [end, end]

        await until(moved, "stored ends at the high watermark")
        second.start(3, (0, 1))
        await until(lambda: not first.host.machine.held, "the first one has seen it")
        assert len(jobs.jobs) == 1, "without a round"

    play(cluster, story, partitions=2)


def test_P8_spark_that_is_not_there_gets_the_same_plans_later(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        def absent(plans: Sequence[TaskPlan]) -> Ending | None:
            return NotStarted("planted") if len(jobs.jobs) < 4 else None

        jobs.before = absent
        here = capture()
        here.start(2, (0, 1))
        await bring(shop)
        await stand(shop, here, 1)
        await assert_once(shop, offsets=(0,))
        assert len(set(jobs.jobs[:4])) == 1
        assert here.epoch == 3, "nobody was placed again"

    play(cluster, story, partitions=2)


def test_V11_a_renamed_table_goes_on_in_its_other_topic(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        here = capture()
        here.start(2, (0, 1))
        await bring(shop)
        await stand(shop, here, 1)
        renamed = msgspec.structs.replace(TABLE, name="other")
        await shop.progress(SchemaVersion(1, renamed, shop.lsn + 1, 0))
        await bring(shop, renamed)
        await stand(shop, here, 2)
        await assert_once(shop, offsets=(0,))
        await assert_once(shop, offsets=(1,), topic=f"{shop.source}.public.other")

    play(cluster, story, partitions=2)


def test_C7_nobody_goes_beyond_a_change_that_has_not_passed(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        here = capture()
        here.start(2, (0, 1))
        await bring(shop)
        number = await shop.change()
        here.ddl = DdlPosition(1, number)
        await bring(shop)
        await stand(shop, here, 1)
        here.ddl = DdlPosition(1, number + 1)
        here.path.wake("orders")
        await stand(shop, here, 3)
        await assert_once(shop, offsets=(0, 2))
        tops = {work.plan.to for job in jobs.jobs for plan in job for work in plan.works}
        assert tops == {Point(1, 0), Point(3, 0)}

    play(cluster, story, partitions=2)


def test_P3_what_waiting_does_not_mend_is_told_as_the_error_of_a_round(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        async def told(code: str, kind: str, **more: str) -> None:
            here = capture(**more)
            here.start(2, (0,))

            def error() -> FeedError | None:
                return next((held.error for held in here.host.machine.held.values()), None)

            await until(lambda: error() is not None, f"error {code}")
            assert (found := error()) is not None
            assert (found.code, found.kind, found.span) == (code, kind, 0)

        await told("position_missing", "isolate", feed="nobody")
        await told("delivery_failed", "fail", sink="kafka:?format=morse")
        await told("delivery_failed", "fail", sink="kafka:?format=json&replication=7&topic={source}.{table}")
        await shop.client.append(shop.told, 0, [Record(b"\x63")])         # a format of some later day [L19]
        await told("delivery_failed", "fail")
        assert jobs.jobs == []

    play(cluster, story, partitions=2)


def test_K2_C8_nothing_is_written_to_a_topic_that_is_another_changefeeds_until_it_is_free(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        claims: dict[str, Claim] = {shop.target: Claim(shop.target, "elder", "public.t")}
        asked: set[str] = set()

        async def owners(feed: str, tables: tuple[TableSchema, ...]) -> dict[str, Claim]:
            asked.update(table.full_name for table in tables)
            return claims

        here = capture(owners=owners)
        here.start(2, (0, 1))
        await bring(shop)

        def error() -> FeedError | None:
            return next((held.error for held in here.host.machine.held.values()), None)

        await until(lambda: error() is not None, "the error")
        assert (found := error()) is not None
        assert (found.kind, found.code) == ("isolate", "table_refused")
        assert "where changefeed 'elder' writes" in found.message
        assert asked, "with the tables that the source has"
        assert jobs.jobs == []
        claims.clear()
        here.stop()
        here.start(9, (0, 1))
        await stand(shop, here, 1)

    play(cluster, story, partitions=2)


def test_C8_a_trouble_that_no_take_over_mends_is_told(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        def broken(plans: Sequence[TaskPlan]) -> Ending | None:
            works = [work for plan in plans for work in plan.works]
            planted = Returned(tuple(unknown(work, "ValueError: planted") for work in works))
            return planted if len(jobs.jobs) <= 2 else None

        jobs.before = broken
        here = capture()
        here.start(2, (0, 1))
        await bring(shop)

        def told() -> bool:
            here.place_again()
            held = here.host.machine.held.get(0)
            return held is not None and held.error is not None and held.error.kind == "isolate"

        await until(told, "the error")
        assert len(jobs.jobs) == 2, "before the third round"
        await stand(shop, here, 1)
        await until(lambda: here.host.machine.held[0].error is None, "it is well again")
        await assert_once(shop, offsets=(0,))

    play(cluster, story, partitions=2)


def test_P4_C9_a_search_for_rows_is_told_while_it_goes_on_and_holds_up_nobody_else(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those rounds move nothing, and the next one follows at once: it is no failure after which one waits."""
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 5.0)
    monkeypatch.setattr(limits, "FEED_RETRY_MAX_S", 60.0)

    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        told = list[FeedError | None]()

        def search(plans: Sequence[TaskPlan]) -> Ending | None:
            works = [work for plan in plans for work in plan.works]
            if [work.dispatcher.span for work in works] != [0]:
                return None if all(work.dispatcher.span for work in works) or len(told) > 4 else Returned(
                    tuple(untried(work, searching="all") for work in works))
            told.append(here.host.machine.held[0].error)
            left = 10 - len(told)
            return Returned(tuple(untried(work, searching=f"{left} left") for work in works)) if left > 5 else None

        jobs.before = search
        here = capture()
        here.start(2, (0,), (1,))
        await until(lambda: len(here.host.free()) == 2, "both take-overs")
        await bring(shop)
        await stand(shop, here, 1)
        await assert_once(shop, offsets=(0,))
        await until(lambda: here.host.machine.held[0].error is None, "nothing is told any more")
        said = [one for one in told if one is not None]
        assert [(one.code, one.kind) for one in said[-4:]] == [("expression_search", "retry")] * 4
        assert [one.message for one in said[-4:]] == ["9 left", "8 left", "7 left", "6 left"]
        assert [one.count for one in said] == list(range(1, len(said) + 1))
        assert len({one.first_ms for one in said}) == 1, "its age counts from its beginning"

    play(cluster, story, partitions=2)


def test_V12_whoever_nobody_can_tell_of_goes_when_the_outage_is_over_not_before(cluster: Cluster) -> None:
    down = True

    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        def outage(plans: Sequence[TaskPlan]) -> Ending | None:
            works = [work for plan in plans for work in plan.works]
            return Returned(tuple(unknown(work, "request_timed_out: planted") for work in works)) if down else None

        jobs.before = outage
        here = capture()
        here.start(2, (0,), (1,))
        await until(lambda: len(here.host.free()) == 2, "both take-overs")
        for _ in range(2):
            await bring(shop)
            await until(lambda: len(jobs.jobs) > 0, "a round")
        await until(lambda: (here.place_again(), here.path.report("orders").trips > 0)[1], "the breaker trips")
        assert here.path.report("orders").outage is not None
        nonlocal down
        down = False
        await stand(shop, here, 2)
        await until(lambda: here.path.report("orders").outage is None, "it is closed")
        await assert_once(shop, offsets=(0, 1))

    play(cluster, story, partitions=2)


@pytest.mark.parametrize("made_again", [False, True], ids=["deleted", "made again"])
@pytest.mark.parametrize("at", ["take-over", "write", "idle"])
def test_K3_a_target_topic_that_was_deleted_is_told_and_not_made_again_with_later_rows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, made_again: bool, at: str
) -> None:
    monkeypatch.setattr(limits, "CLIENT_REFRESH_S", 0.5)
    monkeypatch.setattr(limits, "ENDS_LOOK_S", 0.5)
    monkeypatch.setattr(takeover, "ENDS_LOOK_S", 0.5)
    monkeypatch.setattr(takeover, "ENDS_REFRESH_S", 1.0)

    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        here = capture()
        here.start(2, (0, 1))
        await bring(shop)
        await stand(shop, here, 1)
        if at == "take-over":
            here.stop()
        await shop.client.delete_topic(shop.target)
        if made_again:
            await shop.client.create_topic(shop.target, partitions=2, replication_factor=3)
        if at == "take-over":
            here.start(9, (0, 1))
        elif at == "write":
            await bring(shop)

        def gone() -> bool:
            held = here.host.machine.held.values()
            if at == "write":
                here.place_again()
            return any(one.error is not None and one.error.code == "target_topic_gone" for one in held)

        await until(gone, "the error", 30.0)
        (found,) = {held.error.message for held in here.host.machine.held.values() if held.error is not None}
        assert shop.target in found
        assert "copy the table" in found
        assert made_again == (shop.target in await shop.client.topics())

    play(cluster, story, partitions=2)
