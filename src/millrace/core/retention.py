"""How far a log may be cut, and who keeps it from being cut [L23, F10].

    files      |--closed--|--closed--|--closed--|--active--
    wanted     ............................^        by age and size, whole closed files below the high watermark
    floors              ^a                 ^b       what somebody still needs
    start      .........^                           the last file boundary at or below the smallest floor

In: a log's files, its settings, the time, its high watermark, the floors on it. Out: the new log start, what it would
be without floors, and what each floor holds back. Promise: never above the high watermark or a floor, never the file
that is appended to, whole files only, never back.

A topic of millrace's own (`__millrace…`) is not cut by age or size: a changefeed may stand still for weeks. It is cut
below its smallest floor, and not at all while nobody has registered one, unless it has a setting of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace import limits
from millrace.model.floors import kind_of

NO_LIMIT = -1
RETENTION_MS, RETENTION_BYTES, SEGMENT_MS = "retention.ms", "retention.bytes", "segment.ms"


class Defaults(NamedTuple):
    """Of the cluster, for topics that say nothing."""

    retention_ms: int = limits.RETENTION_MS
    retention_bytes: int = NO_LIMIT


class Settings(NamedTuple):
    """`by_floors`: everything below the smallest floor may go, whatever its age and size."""

    retention_ms: int
    retention_bytes: int
    segment_ms: int
    by_floors: bool

    @property
    def roll_ms(self) -> int:
        """A file whose records span more is closed, so that what is in it can go in time."""
        return self.segment_ms if self.retention_ms == NO_LIMIT else min(self.segment_ms, self.retention_ms)


class File(NamedTuple):
    """`next`: the offset behind it. `newest_ms` 0 or below: no batch in it has a time, and age says nothing."""

    base: int
    next: int
    size_bytes: int
    newest_ms: int


class Held(NamedTuple):
    """What an owner alone would keep: of files that could go. `age_ms`: since the newest record of the oldest one."""

    owner: str
    offset: int
    size_bytes: int
    age_ms: int


class Plan(NamedTuple):
    start: int
    wanted: int
    held: tuple[Held, ...] = ()


def settings_of(*, internal: bool, values: Mapping[str, int | str], defaults: Defaults) -> Settings:
    own = RETENTION_MS in values or RETENTION_BYTES in values
    if internal and not own:
        defaults = Defaults(NO_LIMIT, NO_LIMIT)
    return Settings(
        int(values.get(RETENTION_MS, defaults.retention_ms)),
        int(values.get(RETENTION_BYTES, defaults.retention_bytes)),
        int(values.get(SEGMENT_MS, limits.SEGMENT_MS)),
        by_floors=internal and not own,
    )


def is_due_to_roll(settings: Settings, *, first_ms: int, newest_ms: int) -> bool:
    """By the times of its records, as Kafka: records of long ago that come today do not make a file each."""
    return 0 < first_ms < newest_ms - settings.roll_ms


def may_have_expired(settings: Settings, *, newest_ms: int, now_ms: int) -> bool:
    """All of a log whose newest record is of this time."""
    return settings.retention_ms != NO_LIMIT and 0 < newest_ms < now_ms - settings.retention_ms


def plan(
    files: Sequence[File], *, settings: Settings, now_ms: int, log_start: int, hw: int, floors: Mapping[str, int],
    released: bool = False,
) -> Plan:
    """`files` in order, the active one last. `released`: somebody held this log and was told to let go."""
    closed = [file for file in files[:-1] if file.next <= hw]
    wanted = max(log_start, _wanted(closed, files, settings, now_ms, held=bool(floors) or released))
    lowest = min(floors.values(), default=wanted)
    return Plan(
        max(log_start, _boundary(closed, min(wanted, lowest))), wanted, _held(closed, floors, wanted, log_start, now_ms)
    )


def _wanted(closed: list[File], files: Sequence[File], settings: Settings, now_ms: int, *, held: bool) -> int:
    """The offset below which files may go."""
    end = -1
    if settings.by_floors:
        return closed[-1].next if closed and held else end
    size = sum(file.size_bytes for file in files)
    for file in closed:
        expired = may_have_expired(settings, newest_ms=file.newest_ms, now_ms=now_ms)
        size -= file.size_bytes
        if not expired and not 0 <= settings.retention_bytes <= size:
            break
        end = file.next
    return end


def _boundary(closed: list[File], offset: int) -> int:
    return max((file.next for file in closed if file.next <= offset), default=-1)


def _held(
    closed: list[File], floors: Mapping[str, int], wanted: int, log_start: int, now_ms: int
) -> tuple[Held, ...]:
    found = []
    for owner, floor in floors.items():
        kept = [file for file in closed if max(floor, log_start) < file.next <= wanted]
        if kept:
            age_ms = max(0, now_ms - kept[0].newest_ms) if kept[0].newest_ms > 0 else 0
            found.append(Held(owner, floor, sum(file.size_bytes for file in kept), age_ms))
    return tuple(found)


# -- budgets -----------------------------------------------------------------------------------------------------------
class Budget(NamedTuple):
    """What one owner may hold back on one broker. -1: as much as there is."""

    held_bytes: int = NO_LIMIT
    age_ms: int = NO_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """`floor_share`: of the disk, what one holder may keep from being removed on one broker. A budget of its kind of
    owner (`changefeed`, `source`, `copy`) stands before it; -1: no limit. A disk of unknown size has no share."""

    defaults: Defaults = field(default_factory=Defaults)
    check_s: float = limits.RETENTION_CHECK_S      # 0: never
    floor_share: float = limits.FLOOR_DISK_SHARE_MAX
    floor_age_ms: int = NO_LIMIT
    budgets: Mapping[str, Budget] = field(default_factory=dict)

    def budget_of(self, owner: str, disk_bytes: int) -> Budget:
        own = self.budgets.get(kind_of(owner))
        share = int(self.floor_share * disk_bytes) if disk_bytes > 0 else NO_LIMIT
        return own if own is not None else Budget(share, self.floor_age_ms)


class Release(NamedTuple):
    """`where`: whatever the caller keyed the holding by."""

    owner: str
    where: int
    offset: int
    why: str


def over_budget(held: Sequence[tuple[int, Held]], budgets: Mapping[str, Budget]) -> list[Release]:
    """Who must let go of what, on one broker: the oldest beyond its age, then the largest until the rest fits.

    `held`: (where, what). `budgets` by owner, those without one may hold what they like."""
    by_owner: dict[str, list[tuple[int, Held]]] = {}
    for where, one in held:
        by_owner.setdefault(one.owner, []).append((where, one))
    found: list[Release] = []
    for owner, holdings in by_owner.items():
        budget = budgets.get(owner)
        if budget is not None:
            found += _over(owner, holdings, budget)
    return found


def _over(owner: str, holdings: list[tuple[int, Held]], budget: Budget) -> list[Release]:
    found: list[Release] = []
    rest = []
    for where, one in holdings:
        if 0 <= budget.age_ms < one.age_ms:
            why = f"held for {one.age_ms // 1000} s, its budget is {budget.age_ms // 1000} s"
            found.append(Release(owner, where, one.offset, why))
        else:
            rest.append((where, one))
    total = sum(one.size_bytes for _, one in rest)
    for where, one in sorted(rest, key=lambda entry: -entry[1].size_bytes):
        if not 0 <= budget.held_bytes < total:
            break
        why = f"{total} bytes held on one broker, its budget is {budget.held_bytes}"
        found.append(Release(owner, where, one.offset, why))
        total -= one.size_bytes
    return found
