"""What must hold, judged from outside: the logs of targets, quarantine and positions against the source."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from millrace.model.positions import Point
from millrace_sim.checkers import Violation
from millrace_sim.takeover.log import Row

if TYPE_CHECKING:
    from millrace_sim.takeover.world import World

SIBLING = 7


def check_logs(world: World) -> None:
    """At any time: no row twice, order per key and target, positions only forward."""
    seen: Counter[tuple[int, Point]] = Counter()
    for target, part in world.partitions.items():
        order: dict[int, list[Point]] = defaultdict(list)
        for row in part.records:
            if isinstance(row, Row) and row.writer != SIBLING:
                seen[row.partition, row.point] += 1
                order[world.keys[row.partition, row.point]].append(row.point)
        if target != world.quarantine:
            _check_order(order)
            _check_poison(world, [row for row in part.records if isinstance(row, Row) and row.writer != SIBLING])
    doubled = [row for row, times in seen.items() if times > 1]
    if doubled:
        raise Violation(f"doubled: {doubled[0]}")
    for p in world.source:
        history = world.positions.history(world.key(p))
        for before, after in pairwise(history):
            ends = before.ends_by_target
            back = any(end < ends.get(target, 0) for target, end in after.ends_by_target.items())
            if back or after.epoch < before.epoch or after.at < before.at:
                raise Violation(f"position: {p} went back from {before} to {after}")


def _check_order(order: dict[int, list[Point]]) -> None:
    for points in order.values():
        first = list(dict.fromkeys(points))
        if first != sorted(first):
            raise Violation(f"order: of one key {first}")


def _check_poison(world: World, rows: list[Row]) -> None:
    for row in rows:
        which = (row.partition, row.point)
        if which in world.broken or (which in world.big and not world.limit_was_off):
            raise Violation(f"poison: {which} was delivered")


def check_end(world: World) -> None:
    """Once all is quiet: every row is in a target or in the quarantine, and every position at its end."""
    check_logs(world)
    seen = {
        (row.partition, row.point)
        for part in world.partitions.values() for row in part.records if isinstance(row, Row) and row.writer != SIBLING
    }
    lost = [row for row in world.keys if row not in seen]
    if lost:
        raise Violation(f"lost: {lost[0]}")
