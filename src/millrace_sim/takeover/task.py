"""One execution of a round by Spark: it claims, writes through `Writing`, returns values, and outlives its capture.

Requests to one target go over a connection, in order. A time-out gives up the connection: what it held
may still arrive.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from millrace.core.delivery.pieces import Send
from millrace.core.delivery.writing import Piece, Writing
from millrace.errors import MillraceError, TimedOut
from millrace.model.ids import TopicPartition
from millrace.model.writes import WritePlan
from millrace_sim.takeover.log import Partition, Reply, Row

if TYPE_CHECKING:
    from millrace_sim.takeover.world import World

WINDOW = 4


class Produce:
    """A request on its way."""

    __slots__ = ("leader", "part", "reply", "rows", "send", "writing")

    def __init__(self, part: Partition, writing: Writing, send: Send, rows: list[Row], reply: Reply) -> None:
        self.part, self.leader = part, part.leader
        self.writing, self.send, self.rows, self.reply = writing, send, rows, reply

    def deliver(self) -> None:
        plan = self.writing.plan
        self.part.produce(
            self.leader, plan.writer_id, plan.writer_epoch, self.send.sequence, self.rows, self.reply
        )


class Task:
    def __init__(self, world: World, job: int, plans: dict[int, WritePlan]) -> None:
        self.world, self.job, self.ended = world, job, False
        self.asked = False
        self.connections: dict[TopicPartition, deque[Produce]] = {}
        self.out: dict[tuple[int, int, int], tuple[int, Send]] = {}
        until = world.now + (world.rng.randint(80, 1600) if world.faulty else 8000)
        execution = world.fresh()
        self.writings: dict[int, Writing] = {}
        for p, plan in plans.items():
            if not world.on("fenced_targets"):
                plan = msgspec.structs.replace(plan, partitions=world.listed().partitions)
            self.writings[p] = Writing(
                plan, execution=execution, sending_until=until, deadline=until + 600, window=WINDOW, flaws=world.off
            )
            self._offer(p, self.writings[p])

    def _offer(self, p: int, writing: Writing) -> None:
        """Rows of one target that follow each other may share a piece."""
        world, plan = self.world, writing.plan
        skip = set(plan.skip)
        if skip and not world.on("skip_exact"):
            skip |= {point for point in world.rows_between(p, plan.from_, plan.to) if point < max(skip)}
        pieces: list[Piece] = []
        for point in world.rows_between(p, plan.from_, plan.to):
            if point in skip:
                continue
            target = plan.partitions[world.keys[p, point] % len(plan.partitions)]
            poison = "cannot be encoded" if (p, point) in world.broken else ""
            last = pieces[-1] if pieces else None
            if last and not last.poison and not poison and last.target == target and world.rng.random() < world.sharing:
                pieces[-1] = Piece(target, (*last.points, point))
            else:
                pieces.append(Piece(target, (point,), poison))
        for piece in pieces:
            writing.offer(piece)
        writing.handed(plan.to)

    # -- steps ---------------------------------------------------------------------------------------------------------
    def step(self) -> None:
        world, rng = self.world, self.world.rng
        if not self.asked or rng.random() < 0.02:
            self._claim()
        p = rng.choice(list(self.writings))
        for send in self.writings[p].sends(world.now):
            self._send(p, send)
        if self.out and rng.random() < 0.04:
            self._time_out(rng.choice(sorted(self.out)))
        if all(writing.result is not None for writing in self.writings.values()):
            self._end()

    def _claim(self) -> None:
        """One request for all partitions."""
        self.asked = True
        world = self.world

        def arrive() -> None:
            for writing in self.writings.values():
                world.positions.claim(writing.plan.key, writing.claim, self._told(writing))

        world.call(arrive)

    def _told(self, writing: Writing) -> Reply:
        def reply(answer: object) -> None:
            if not isinstance(answer, MillraceError):
                writing.claimed()
                self.world.after_claim(self.job)
            elif not answer.retriable:
                writing.claim_refused(answer.code)

        return reply

    def _send(self, p: int, send: Send) -> None:
        world, writing = self.world, self.writings[p]
        part = world.partitions[send.target]
        rows = [Row(writing.plan.writer_id, p, point) for point in send.points]
        self.out[p, send.number, send.attempt] = (p, send)
        request = Produce(part, writing, send, rows, lambda a: self._answered(p, send, a))
        if send.target not in self.connections:
            self.connections[send.target] = world.connect()
        self.connections[send.target].append(request)

    def _answered(self, p: int, send: Send, answer: object) -> None:
        assert isinstance(answer, (int, MillraceError))
        self.out.pop((p, send.number, send.attempt), None)
        self.writings[p].answered(send, answer)

    def _time_out(self, which: tuple[int, int, int]) -> None:
        """Everything on that connection is in doubt; some of it may arrive later all the same."""
        target = self.out[which][1].target
        connection = self.connections.pop(target, None)
        if connection is not None and self.world.chance(0.5):
            self.world.hold_up(connection)
        for key, (p, send) in list(self.out.items()):
            if send.target == target:
                del self.out[key]
                self.writings[p].answered(send, TimedOut("no answer"))

    def _end(self) -> None:
        self.ended = True
        world = self.world
        if world.chance(0.1):
            return  # the result is lost
        results = {p: w.result for p, w in self.writings.items() if w.result is not None}
        world.answer(lambda _: world.job_done(self.job, results), None, lossy=False)

