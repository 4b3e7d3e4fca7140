"""What a changefeed says of single tables, from a source's topic to the targets on three real brokers [K2, P4, V11]."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest

from millrace import limits
from millrace.model.changefeeds import FeedError, TableSettings
from millrace.model.positions import Point
from millrace.model.progress import SchemaVersion
from millrace.model.tables import Column
from millrace.pipeline.rounds import Ending
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


async def bring(shop: Shop, capture: Capture, offset: int) -> None:
    """Rows, until they are committed at this offset."""
    await shop.rows(0, [insert(n) for n in range(ROWS)])
    await shop.mark()
    await stand(shop, capture, offset)


async def stand(shop: Shop, capture: Capture, offset: int) -> None:
    async def it_does() -> bool:
        capture.place_again()
        return await shop.at(0) == Point(offset, 0)

    await until(it_does, f"the position at {offset}")


def rows(*offsets: int) -> dict[tuple[int, Point], int]:
    return dict.fromkeys(((0, Point(offset, row)) for offset in offsets for row in range(ROWS)), 1)


def test_K2_P4_a_table_has_the_topic_partition_and_columns_that_are_said_of_it(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        topic = f"{shop.source}.mine"
        here = capture(
            TableSettings(tables="public.other", topic="nobody"),
            TableSettings(tables="public.*", topic="{source}.mine", partition_by="table", projection=("id AS no", "x")))
        here.start(2, (0,))
        await bring(shop, here, 1)
        assert await shop.delivered(topic) == rows(0)
        ends = [(await shop.client.ends(topic, partition))[1] for partition in (0, 1)]
        assert sorted(end > 1 for end in ends) == [False, True], "all of the table in one partition"
        assert shop.target not in await shop.client.topics()
        [page] = [page async for page in shop.client.read(topic, ends.index(max(ends)), 0, max(ends))]
        told = json.loads(page[0].value or b"")
        assert {name: told.get(name) for name in ("no", "x", "id")} == {"no": 0, "x": "text 0", "id": None}

    play(cluster, story)


def test_V11_K3_rows_that_stand_in_a_topic_of_former_settings_are_not_doubled(cluster: Cluster) -> None:
    """Its last round there was written and never answered; then somebody changed the topic."""
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        losses: list[Ending] = []

        def lose(ending: Ending) -> Ending:
            losses.append(lost(jobs.jobs[-1], session_lost=True))
            return losses[-1]

        first = capture(TableSettings(tables="public.t", topic="{source}.one"))
        first.start(2, (0,))
        await bring(shop, first, 1)
        jobs.after = lose
        await shop.rows(0, [insert(n) for n in range(ROWS)])
        await shop.mark()
        await until(lambda: bool(losses) and not first.host.machine.held, "the lost round")
        jobs.after = lambda ending: ending
        second = capture(TableSettings(tables="public.t", topic="{source}.two"))
        second.start(5, (0,))
        await stand(shop, second, 2)
        await bring(shop, second, 3)
        assert await shop.delivered(f"{shop.source}.one") == rows(0, 1)
        assert await shop.delivered(f"{shop.source}.two") == rows(2)

    play(cluster, story)


def test_P4_C8_a_version_that_its_settings_do_not_fit_is_the_tables_trouble(cluster: Cluster) -> None:
    async def story(shop: Shop, jobs: LocalJobs, capture: Make) -> None:
        here = capture(TableSettings(tables="public.t", projection=("id", "x")))
        here.start(2, (0,))
        await bring(shop, here, 1)
        narrow = msgspec.structs.replace(TABLE, columns=(TABLE.columns[0], Column("y", 25)))
        await shop.progress(SchemaVersion(1, narrow, shop.lsn + 1, 0))
        await shop.rows(0, [insert(1)], narrow)
        await shop.mark()

        def error() -> FeedError | None:
            here.place_again()
            return next((held.error for held in here.host.machine.held.values()), None)

        await until(lambda: error() is not None, "the error")
        found = error()
        assert found is not None
        assert (found.code, found.kind, found.span) == ("table_refused", "isolate", 0)
        assert "settings[0].projection" in found.message
        assert await shop.at(0) == Point(1, 0)

    play(cluster, story)
