"""How far a log may be cut, who keeps it, and who keeps too much [L23, F10]."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.retention import (
    NO_LIMIT,
    Budget,
    Defaults,
    File,
    Held,
    RetentionConfig,
    Settings,
    is_due_to_roll,
    over_budget,
    plan,
    settings_of,
)

DAY = 86_400_000
FILES = [File(0, 10, 100, 1_000), File(10, 20, 100, 2_000), File(20, 30, 100, 3_000), File(30, 35, 50, 4_000)]


def settings(*, ms: int = NO_LIMIT, size: int = NO_LIMIT, by_floors: bool = False) -> Settings:
    return Settings(ms, size, limits.SEGMENT_MS, by_floors)


def start(of: Settings, *, now: int = 4_000, hw: int = 35, floors: dict[str, int] | None = None, **more: bool) -> int:
    return plan(FILES, settings=of, now_ms=now, log_start=0, hw=hw, floors=floors or {}, **more).start


def test_L23_by_age_whole_files_go_never_the_active_one() -> None:
    assert start(settings(ms=2_500), now=4_000) == 10
    assert start(settings(ms=2_000), now=4_000) == 10, "just as old as allowed"
    assert start(settings(ms=0), now=99_999) == 30
    assert start(settings()) == 0


def test_L23_by_size_what_is_left_keeps_the_size() -> None:
    assert start(settings(size=350)) == 0
    assert start(settings(size=250)) == 10
    assert start(settings(size=249)) == 10
    assert start(settings(size=0)) == 30


def test_L23_never_above_the_high_watermark() -> None:
    assert start(settings(size=0), hw=29) == 20
    assert start(settings(size=0), hw=9) == 0


def test_F10_never_above_the_smallest_floor() -> None:
    assert start(settings(size=0), floors={"a": 25, "b": 30}) == 20
    assert start(settings(size=0), floors={"a": 5}) == 0
    assert start(settings(size=0), floors={"a": 20}) == 20


def test_F10_own_topics_are_cut_by_floors_alone() -> None:
    own = settings(by_floors=True)
    assert start(own, now=99_999_999) == 0, "nobody has registered: nothing goes"
    assert start(own, floors={"a": 20, "b": 34}) == 20
    assert start(own, released=True) == 30, "the last holder was told to let go, so that the disk has room"


def test_F10_what_a_floor_holds_back() -> None:
    found = plan(FILES, settings=settings(size=0), now_ms=5_000, log_start=0, hw=35, floors={"a": 15, "b": 30, "c": 0})
    assert found.wanted == 30
    assert found.held == (Held("a", 15, 200, 3_000), Held("c", 0, 300, 4_000))


def test_F10_of_what_has_no_time_nobody_can_say_how_long_it_is_held() -> None:
    """Records of the time 0, or of none: a budget of age must not take them for half a century old."""
    for no_time in (0, -1):
        files = [File(0, 10, 100, no_time), *FILES[1:]]
        (held,) = plan(files, settings=settings(size=0), now_ms=5_000, log_start=0, hw=35, floors={"a": 0}).held
        assert held.age_ms == 0


def test_L23_settings_of_a_topic_its_cluster_and_our_own() -> None:
    defaults = Defaults(7 * DAY, 1000)
    assert settings_of(internal=False, values={}, defaults=defaults)[:2] == (7 * DAY, 1000)
    assert settings_of(internal=False, values={"retention.ms": 5}, defaults=defaults)[:2] == (5, 1000)
    assert settings_of(internal=True, values={}, defaults=defaults) == Settings(-1, -1, limits.SEGMENT_MS, True)
    own = settings_of(internal=True, values={"retention.ms": 5}, defaults=defaults)
    assert (own.retention_ms, own.by_floors) == (5, False)


def test_L23_a_file_is_closed_when_its_front_is_old() -> None:
    of = Settings(retention_ms=1_000, retention_bytes=-1, segment_ms=5_000, by_floors=False)
    assert not is_due_to_roll(of, first_ms=1, newest_ms=1_001)
    assert is_due_to_roll(of, first_ms=1, newest_ms=1_002)
    assert not is_due_to_roll(of._replace(retention_ms=-1), first_ms=1, newest_ms=5_001)
    assert is_due_to_roll(of._replace(retention_ms=-1), first_ms=1, newest_ms=5_002)
    assert not is_due_to_roll(of, first_ms=0, newest_ms=DAY), "records without a time"
    assert not is_due_to_roll(of, first_ms=-1, newest_ms=DAY), "empty, or without times"


@st.composite
def logs(draw: st.DrawFn) -> list[File]:
    base, found = draw(st.integers(0, 5)), []
    for _ in range(draw(st.integers(1, 6))):
        following = base + draw(st.integers(1, 10))
        found.append(File(base, following, draw(st.integers(1, 100)), draw(st.integers(-1, 50))))
        base = following
    return found


@given(
    files=logs(), ms=st.integers(-1, 60), size=st.integers(-1, 400), by_floors=st.booleans(), now=st.integers(0, 100),
    share=st.floats(0, 1), floors=st.dictionaries(st.sampled_from("abc"), st.integers(0, 70)), released=st.booleans(),
)
def test_F10_a_cut_takes_whole_files_nothing_needed_and_nothing_uncommitted(
    files: list[File], ms: int, size: int, by_floors: bool, now: int, share: float, floors: dict[str, int],
    released: bool,
) -> None:
    log_start = files[0].base
    hw = log_start + int(share * (files[-1].next - log_start))
    of = settings(ms=ms, size=size, by_floors=by_floors)
    found = plan(files, settings=of, now_ms=now, log_start=log_start, hw=hw, floors=floors, released=released)
    assert log_start <= found.start <= max(log_start, hw)
    assert found.start <= files[-1].base
    assert found.start in {log_start, *(file.next for file in files)}
    assert found.start <= max(log_start, min(floors.values(), default=found.start))
    free = released or by_floors
    without = plan(files, settings=of, now_ms=now, log_start=log_start, hw=hw, floors={}, released=free)
    assert found.start <= without.start
    held = sum(f.size_bytes for f in files if found.start < f.next <= found.wanted)
    assert max((one.size_bytes for one in found.held), default=0) >= held or not floors
    again = plan(files, settings=of, now_ms=now, log_start=found.start, hw=hw, floors=floors, released=released)
    assert again.start >= found.start


def test_F10_a_holder_beyond_its_budget_lets_go_of_the_most_first() -> None:
    held = [(0, Held("feed/a", 5, 100, 10)), (1, Held("feed/a", 6, 300, 10)), (2, Held("feed/b", 7, 50, 10))]
    budgets = {"feed/a": Budget(150), "feed/b": Budget(150)}
    (released,) = over_budget(held, budgets)
    assert (released.owner, released.where, released.offset) == ("feed/a", 1, 6)
    assert "400 bytes" in released.why
    assert not over_budget(held, {"feed/a": Budget(400), "feed/b": Budget()})


def test_F10_a_budget_of_age() -> None:
    held = [(0, Held("feed/a", 5, 100, 10_000)), (1, Held("feed/a", 6, 300, 9_000))]
    (released,) = over_budget(held, {"feed/a": Budget(age_ms=9_500)})
    assert (released.where, released.why) == (0, "held for 10 s, its budget is 9 s")


def test_F10_budgets_by_kind_stand_before_the_share_of_the_disk() -> None:
    config = RetentionConfig(floor_share=0.5, floor_age_ms=7, budgets={"copy": Budget(10, -1)})
    assert config.budget_of("copy/shop/3", 1_000) == Budget(10, -1)
    assert config.budget_of("changefeed/a", 1_000) == Budget(500, 7)
    assert config.budget_of("changefeed/a", 0) == Budget(NO_LIMIT, 7), "a disk that does not say how large it is"
