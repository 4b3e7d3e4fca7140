"""What goes wrong, and how often: each seed draws its own mix. Some faults are tied to an event, not to time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace_sim.takeover.log import Partition
from millrace_sim.takeover.maintainer import CAPTURES

if TYPE_CHECKING:
    from millrace_sim.takeover.world import World

from millrace.model.ids import TopicPartition

TARGETS_MAX = 4
NOT_EVENTS = ("loss", "dup", "hw", "net", "deliver")


class Faults:
    def __init__(self, world: World) -> None:
        self.world = world
        pick = world.rng.choice
        self.rate: dict[str, float] = {
            "crash": pick((0, 1, 3)), "pause": pick((0, 1, 3)), "failover": pick((0, 2, 8)), "suspect": pick((0, 1, 3)),
            "move": pick((0, 2)), "split": pick((0, 1, 2)), "merge": pick((0, 1, 2)), "again": pick((0, 2, 6)),
            "outage": pick((0, 1)), "grow": pick((0, 3)), "sibling": pick((0, 4)), "limit": pick((0, 0, 1)),
            "retention": pick((0, 3)), "loss": pick((0, 0.03, 0.1)), "dup": pick((0, 0.1, 0.5)), "hw": pick((20, 60)),
            "net": pick((30, 80)), "deliver": pick((30, 80)),
        }
        troubles = {kind: rate / 4 for kind, rate in self.rate.items() if kind not in NOT_EVENTS and rate}
        self._troubles, self._trouble = list(troubles), sum(troubles.values())
        self._weights = list(troubles.values())

    def next(self) -> str:
        """What happens next, among all that can."""
        world, rate, faulty = self.world, self.rate, self.world.faulty
        at = world.rng.random() * (
            (net := rate["net"] if world.net else 0.0)
            + (deliver := rate["deliver"] if any(world.connections) else 0.0)
            + (task := 60.0 if world.tasks else 0.0)
            + (late := (4.0 if faulty else 20.0) if world.late else 0.0)
            + (trouble := self._trouble if faulty else 0.0)
            + (source := 2.0 if faulty else 20.0)
            + rate["hw"] + 40.0 + 8.0
        )
        for kind, weight in (
            ("dispatcher", 40.0), ("hw", rate["hw"]), ("net", net), ("deliver", deliver), ("task", task),
            ("maintain", 8.0), ("source", source), ("late", late), ("trouble", trouble),
        ):
            at -= weight
            if at < 0:
                return kind
        return "hw"

    def trouble(self) -> None:
        kind = self.world.rng.choices(self._troubles, self._weights)[0]
        self.world.count[kind] += 1
        self.happen(kind)

    def happen(self, kind: str) -> None:
        getattr(self, f"_{kind}")()
        self.world.tell(kind)

    def _crash(self) -> None:
        capture = self.world.rng.choice(CAPTURES)
        self.world.incarnation[capture] += 1
        self.world.paused.discard(capture)

    def _pause(self) -> None:
        self.world.paused ^= {self.world.rng.choice(CAPTURES)}

    def _failover(self) -> None:
        world = self.world
        world.rng.choice([*world.partitions.values(), world.positions]).fail_over()
        if world.rng.random() < 0.5:
            world.deliver_late()

    def _suspect(self) -> None:
        self.world.maintainer.place(self.world.rng.choice(self.world.maintainer.spans))

    def _move(self) -> None:
        self.world.maintainer.operate(self.world.rng.choice(self.world.maintainer.spans), None)

    def _split(self) -> None:
        self.world.maintainer.operate(self.world.rng.choice(self.world.maintainer.spans), "split")

    def _merge(self) -> None:
        spans = self.world.maintainer.spans
        if len(spans) > 1:
            one, other = self.world.rng.sample(spans, 2)
            self.world.maintainer.operate(one, other)

    def _again(self) -> None:
        world = self.world
        if world.tasks:
            task = world.rng.choice(world.tasks)
            task.ended |= world.rng.random() < 0.3
            world.execute_again(task)

    def _outage(self) -> None:
        part = self.world.partitions[self.world.rng.choice(self.world.targets())]
        part.up = not part.up

    def _grow(self) -> None:
        targets = self.world.targets()
        if len(targets) < TARGETS_MAX:
            self.world.partitions[TopicPartition(targets[0].topic_id, len(targets))] = Partition(self.world)

    def _sibling(self) -> None:
        self.world.sibling_writes()

    def _limit(self) -> None:
        world = self.world
        if world.rng.random() < 0.4:
            world.limit_is_on = not world.limit_is_on
            world.limit_was_off = True

    def _retention(self) -> None:
        self.world.retain()
