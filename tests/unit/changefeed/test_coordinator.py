"""The coordinator: readers come back anywhere under a new epoch, and nothing runs that it has not written [C1]."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from millrace.changefeed import office
from millrace.changefeed.removal import Kept
from millrace.errors import (
    ConfigError,
    InvalidRequest,
    NotCoordinator,
    SourceAuthFailed,
    SourceExists,
    SourceUnreachable,
    UnknownSource,
)
from millrace.model.sources import ReaderPlaced, SourceCreated, SourceRemoved, SourceRemoving
from support_coordinator import World, play, spec


def test_S3_an_epoch_is_durable_before_its_reader_exists() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        await w.until(lambda: w.coordinator is not None)
        await w.reign().create(spec())
        await w.until(lambda: w.running)

    world = play(story)
    placed, stood = world.built[0]
    assert placed in stood
    assert placed.epoch == 1


def test_C1_after_kill_9_another_capture_reads_every_source_under_higher_epochs() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        await w.until(lambda: w.coordinator is not None)
        for name in ("shop", "crm"):
            await w.reign().create(spec(name, f"postgresql://u@h/{name}"))
        await w.until(lambda: len(w.running) == 2)
        first, before = w.coordinator, {p.source: p.epoch for p in w.running}
        assert first is not None
        w.crash(first)
        took_s = await w.until(lambda: len(w.running) == 2)
        assert took_s < 2.0
        assert {p.capture for p in w.running} == {1 - first}
        assert all(p.epoch > before[p.source] for p in w.running)
        assert set(w.reign().state.sources) == {"shop", "crm"}

    play(story)


def test_C1_a_coordinator_that_was_paused_stops_its_readers_and_writes_nothing() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        await w.until(lambda: w.coordinator is not None)
        await w.reign().create(spec())
        await w.until(lambda: w.running)
        first = w.coordinator
        assert first is not None
        old, reign = next(iter(w.running)), w.reign()
        w.sim.pause(w.hosts[first], 10.0)
        await w.until(lambda: w.coordinator == 1 - first)
        await w.until(lambda: old in w.ended)
        assert {p.capture for p in w.running} == {1 - first}
        with pytest.raises(NotCoordinator):
            await reign.create(spec("other", "postgresql://u@h/other"))
        assert [r.spec.name for r in w.records() if isinstance(r, SourceCreated)] == ["shop"]

    play(story, one_machine=False)


def test_C1_a_reader_that_fails_comes_back_under_a_new_epoch() -> None:
    async def story(w: World) -> None:
        w.failures = [SourceUnreachable("gone"), ValueError("a mistake of ours"), SourceUnreachable("gone")]
        w.boot(0)
        await w.until(lambda: w.coordinator is not None)
        await w.reign().create(spec())
        await w.until(lambda: w.running)
        host = w.reign().hosts["shop"]
        assert host.failures == 3
        assert [p.epoch for p in w.ended] == [1, 2, 3]
        assert next(iter(w.running)).epoch == 4

    play(story)


def test_S9_what_somebody_must_put_right_is_a_state_and_no_crash_loop() -> None:
    async def story(w: World) -> None:
        w.failures = [SourceAuthFailed("password for user u: postgresql://u:geheim@h/db") for _ in range(100)]
        w.boot(0)
        await w.until(lambda: w.coordinator is not None)
        await w.reign().create(spec())
        await w.until(lambda: w.ended)
        await asyncio.sleep(60)
        host = w.reign().hosts["shop"]
        assert host.state == "failed"
        assert host.code == "source_auth_failed"
        assert "geheim" not in host.why
        assert len(w.ended) < 15
        w.failures.clear()
        await w.until(lambda: w.running)

    play(story)


def test_S1_a_removal_stops_the_reader_first_and_a_later_source_starts_above_its_epochs() -> None:
    async def story(w: World) -> None:
        w.boot(0)
        await w.until(lambda: w.coordinator is not None)
        await w.reign().create(spec())
        await w.until(lambda: w.running)
        remover = await w.reign().remove("shop", force=False)
        await remover.finished.wait()
        assert w.removals == [("shop", False)]
        with pytest.raises(UnknownSource):
            await w.reign().remove("shop", force=False)
        await w.reign().create(spec())
        await w.until(lambda: w.running)

    world = play(story)
    kinds = [type(r) for r in world.records()]
    assert kinds == [SourceCreated, ReaderPlaced, SourceRemoving, ReaderPlaced, SourceRemoved, SourceCreated,
                     ReaderPlaced]
    epochs = [r.epoch for r in world.records() if isinstance(r, ReaderPlaced)]
    assert epochs == sorted(set(epochs))


def test_S1_an_unfinished_removal_is_finished_by_the_next_coordinator() -> None:
    async def story(w: World) -> None:
        w.removal_error = SourceUnreachable("gone")
        w.boot(0, 1)
        await w.until(lambda: w.coordinator is not None)
        await w.reign().create(spec())
        remover = await w.reign().remove("shop", force=False)
        await w.until(lambda: len(w.removals) > 1)
        assert "gone" in remover.why
        first = w.coordinator
        assert first is not None
        w.crash(first)
        await w.until(lambda: w.coordinator == 1 - first)
        assert w.reign().removers["shop"] is not remover
        w.removal_error = None
        await w.until(lambda: not w.reign().state.sources)

    play(story)


def test_S1_what_the_database_does_not_let_go_is_named_and_can_be_given_up() -> None:
    async def story(w: World) -> None:
        w.left = ["slot millrace_shop: permission denied"]
        w.boot(0)
        await w.until(lambda: w.coordinator is not None)
        await w.reign().create(spec())
        remover = await w.reign().remove("shop", force=False)
        await w.until(lambda: remover.left_behind)
        assert "slot millrace_shop" in remover.why
        assert not remover.finished.is_set()
        await w.reign().remove("shop", force=True)
        await w.until(remover.finished.is_set)
        assert w.removals[-1] == ("shop", True)

    play(story)


def test_S1_what_is_not_ours_to_remove_is_named_and_not_waited_for() -> None:
    async def story(w: World) -> None:
        w.left = [Kept("publication theirs: it was not made by millrace")]
        w.boot(0)
        await w.until(lambda: w.coordinator is not None)
        await w.reign().create(spec())
        remover = await w.reign().remove("shop", force=False)
        await w.until(remover.finished.is_set)
        assert msgspec.json.encode(remover.left_behind) == b'["publication theirs: it was not made by millrace"]'

    play(story)


def test_A8_a_password_in_the_clear_is_refused_and_nothing_is_written() -> None:
    async def story(w: World) -> None:
        w.boot(0)
        await w.until(lambda: w.coordinator is not None)
        with pytest.raises(InvalidRequest, match=r"\$\{env:NAME\}") as caught:
            await w.reign().create(spec(url="postgresql://u:geheim@h/db"))
        assert "geheim" not in str(caught.value)
        assert w.records() == []
        await w.reign().create(spec(url="postgresql://u:${env:SHOP}@h/db"))
        with pytest.raises(SourceExists):
            await w.reign().create(spec())

    play(story)


def test_a_caller_that_goes_away_leaves_no_half_made_decision() -> None:
    async def story(w: World) -> None:
        w.boot(0)
        await w.until(lambda: w.coordinator is not None)
        asking = asyncio.ensure_future(w.reign().create(spec()))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(SourceExists):
            await w.reign().create(spec())
        assert len([r for r in w.records() if isinstance(r, SourceCreated)]) == 1
        await w.until(lambda: w.running)

    play(story)


def test_C1_the_history_stays_short_and_nothing_of_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "SNAPSHOT_EVERY_RECORDS", 6)

    async def story(w: World) -> None:
        w.failures = [SourceUnreachable("gone") for _ in range(9)]
        w.boot(0, 1)
        await w.until(lambda: w.coordinator is not None)
        for name in ("gone", "kept", "leaving"):
            await w.reign().create(spec(name, f"postgresql://u@h/{name}"))
        await (await w.reign().remove("gone", force=False)).finished.wait()
        await w.until(lambda: not w.failures and len(w.running) == 2)
        w.removal_error = SourceUnreachable("gone")
        await w.reign().remove("leaving", force=False)
        await w.until(lambda: len(w.removals) > 8)
        highest = max(p.epoch for p, _ in w.built)
        first = w.coordinator
        assert first is not None
        w.crash(first)
        await w.until(lambda: w.running)
        assert len(w.records()) < 12
        sources = w.reign().state.sources
        assert {name: entry.removing for name, entry in sources.items()} == {"kept": False, "leaving": True}
        assert all(p.epoch > highest for p in w.running)

    play(story)


def test_S3_an_epoch_without_a_reader_is_used_again() -> None:
    async def story(w: World) -> None:
        w.build_error = ConfigError("${env:SHOP}: the environment variable is not set; set it")
        w.boot(0)
        await w.until(lambda: w.coordinator is not None)
        await w.reign().create(spec())
        await asyncio.sleep(60)
        assert w.reign().hosts["shop"].state == "failed"
        assert "SHOP" in w.reign().hosts["shop"].why
        w.build_error = None
        await w.until(lambda: w.running)
        assert [p.epoch for p in w.running] == [1]

    world = play(story)
    assert len(world.records()) == 2


def test_C9_who_stands_back_frees_the_office_for_others_and_comes_back_later() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        await w.until(lambda: w.coordinator is not None)
        first = w.coordinator
        assert first is not None
        w.shells[first].stand_back(8.0)
        w.shells[first].stand_back(60.0)                     # the first word counts
        took_s = await w.until(lambda: w.coordinator == 1 - first)
        assert took_s < 2.0
        w.crash(1 - first)
        took_s = await w.until(lambda: w.coordinator == first)
        assert 5.0 < took_s < 9.0
        assert w.shells[first].tenures == 2

    play(story)


def test_C9_a_capture_that_stops_while_it_stands_back_is_no_candidate_any_more() -> None:
    async def story(w: World) -> None:
        w.boot(0, 1)
        await w.until(lambda: w.coordinator is not None)
        first = w.coordinator
        assert first is not None
        w.shells[first].stand_back(3.0)
        await w.until(lambda: w.coordinator == 1 - first)
        await w.shells[first].stop()
        w.crash(1 - first)
        await asyncio.sleep(20)
        assert w.coordinator is None

    play(story)
