"""The world of one seed: one heap of timed steps.

    faults and work (FAULTS_S) ──▶ heal ──▶ until everything has converged (HEAL_S at most) ──▶ the last checks
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial

from millrace.core.feeds.effects import Send
from millrace.core.feeds.feeds import FeedEntry, FeedsDecision, FeedsState, office
from millrace.core.feeds.office import FeedState
from millrace.errors import InvalidRequest, UserError
from millrace.model.changefeeds import (
    BEGINNING,
    ChangefeedChanged,
    ChangefeedCreated,
    decode_coordinator,
    decode_feed,
    encode_record,
)
from millrace.model.feed_messages import FeedFailing
from millrace.model.spans import CaptureId, TableId
from millrace_sim.bulk import Measured
from millrace_sim.checkers import Violation
from millrace_sim.control import checkers
from millrace_sim.control.capture import OFFICE, Capture
from millrace_sim.control.data import FeedData
from millrace_sim.control.faults import Faults
from millrace_sim.control.hosts import SESSION_S
from millrace_sim.control.store import Owner, Store

FAULTS_S, HEAL_S = 30.0, 75.0
TICK_S, LSN_S = 0.5, 0.5
CHECK_S = 2.5


class Crashed(Exception):
    """The process that was running is gone."""


class World:
    def __init__(self, seed: int, flaws: frozenset[str]) -> None:
        self.rng, self.flaws = random.Random(seed), flaws
        self.people = random.Random(f"people {seed}")
        self.log = random.Random(f"log {seed}")
        self.odd = random.Random(f"odd {seed}")
        self.faults = Faults(self.rng, self.people, self.log, self.odd)
        self.now, self.healed = 0.0, False
        self._queue: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._number = 0
        self.count: Counter[str] = Counter()
        self.trace: list[str] | None = None
        self.crc = 0
        self.store = Store(self._wrote, flaws=flaws)
        self.cut: set[tuple[CaptureId, CaptureId]] = set()
        self.cut_for_ever: set[tuple[CaptureId, CaptureId]] = set()
        self.store_cut: set[CaptureId] = set()
        self.sick: set[TableId] = set()
        self.denied: set[str] = set()
        self.mute: CaptureId | None = None                # reaches the store and nobody else, for ever
        self.laid_aside: str | None = None                # paused, and not resumed by anybody who heals the world
        self.waiting_since: dict[str, float] = {}
        lsns = int(FAULTS_S / LSN_S) + 8
        feeds = ("orders", "people")[: self.rng.choice((1, 2))]
        self.data = {feed: FeedData(feed, self.rng, lsns, flaws) for feed in feeds}
        self.removed: str | None = None
        self.captures = {n: Capture(self, n) for n in range(self.rng.choice((2, 3, 3, 4, 5)))}
        for feed in feeds:
            made = ChangefeedCreated(self.data[feed].rules.now.spec, 0)
            self.store.office(OFFICE).records.append(encode_record(made))
        for number, capture in self.captures.items():
            late = self.faults.late and number > 1
            self.after(self.rng.uniform(5, 20) if late else 0.0, self.start, capture)

    # -- time and chance
    def after(self, delay_s: float, do: Callable[..., object], *arguments: object) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._number, do, arguments))

    def until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, do, arguments = heapq.heappop(self._queue)
            do(*arguments)
        self.now = end

    def chance(self, of: float) -> bool:
        return bool(of) and not self.healed and self.rng.random() < of

    def short(self) -> float:
        return self.rng.uniform(0.001, 0.05 if self.healed else 0.3)

    def note(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:8.3f} {line}")

    # -- processes
    def start(self, capture: Capture) -> None:
        if not capture.up:
            capture.start()
            self.note(f"capture {capture.id} starts as {capture.incarnation}")
            self.after(self.rng.random() * TICK_S, self._tick, capture, capture.incarnation)

    def crash(self, capture: Capture) -> None:
        if capture.up:
            capture.up = False
            self.count["crash"] += 1
            self.note(f"capture {capture.id} dies")
            down_s = self.rng.expovariate(1 / self.faults.down_s)
            self.after(min(down_s, TICK_S * 10) if self.healed else down_s, self.start, capture)

    def crash_point(self, capture: Capture) -> None:
        if self.chance(self.faults.crash_point):
            self.crash(capture)
            raise Crashed

    def in_process(self, capture: Capture, incarnation: int, do: Callable[[], object]) -> None:
        if not capture.up or capture.incarnation != incarnation:
            return
        if self.now < capture.paused_until:
            self.after(capture.paused_until - self.now, self.in_process, capture, incarnation, do)
            return
        try:
            do()
        except Crashed:
            pass

    def _tick(self, capture: Capture, incarnation: int) -> None:
        self.in_process(capture, incarnation, capture.tick)
        if capture.up and capture.incarnation == incarnation:
            self.after(TICK_S, self._tick, capture, incarnation)

    def is_gone(self, who: Owner) -> bool:
        """Provably: the same machine, and the process is no more."""
        capture = self.captures[who[0]]
        return self.faults.proofs and not (capture.up and capture.incarnation == who[1])

    def proved_gone(self) -> list[Owner]:
        if not self.faults.proofs:
            return []
        return [(c.id, c.incarnation if not c.up else c.incarnation - 1) for c in self.captures.values()]

    # -- messages
    def send(self, source: CaptureId, send: Send) -> None:
        self.count["messages"] += 1
        self.count[type(send.message).__name__] += 1
        if send.to == source:
            self.after(0.001, self._deliver, source, send)
            return
        link = (source, send.to)
        if link in self.cut or link in self.cut_for_ever or self.chance(self.faults.loss):
            return
        for _ in range(2 if self.chance(self.faults.dup) else 1):
            delay_s = self.rng.expovariate(1 / (0.01 if self.healed else self.faults.delay_s))
            self.after(delay_s, self._deliver, source, send)

    def _deliver(self, source: CaptureId, send: Send) -> None:
        capture = self.captures[send.to]
        if capture.up:
            self.in_process(capture, capture.incarnation, lambda: capture.receive(source, send.message))

    def tell_coordinator(self, source: CaptureId, message: FeedFailing) -> None:
        for capture in self.captures.values():
            if capture.up and capture.coordinator is not None:
                self.send(source, Send(capture.id, message))

    # -- what becomes durable
    def _wrote(self, name: str, record: bytes) -> None:
        self.crc = zlib.crc32(record, self.crc)
        self.note(f"{name}: {record[1:]!r}" if self.trace is not None else "")
        if name == OFFICE:
            said = decode_coordinator(record)
            self.count[type(said).__name__] += 1
            if isinstance(said, ChangefeedChanged):
                self.data[said.spec.id].rules.update(said.spec)
            return
        decoded = decode_feed(record)
        self.count[type(decoded).__name__] += 1
        self.data[name.partition("/")[2]].wrote(decoded)

    def entry(self, feed: str) -> FeedEntry | None:
        """As the coordinator's office has it now; None: it was removed."""
        state = FeedsState()
        for record in self.store.office(OFFICE).records:
            state.replay(decode_coordinator(record))
        return state.feeds.get(feed)

    def clean_up(self, capture: Capture, feed: str, epoch: int) -> bool:
        """The office is taken from every maintainer, then all positions are closed."""
        if not self.store.grant(office(feed), (capture.id, capture.incarnation), epoch):
            return False
        state, data = FeedState(), self.data[feed]
        for record in self.store.office(office(feed)).records:
            state.replay(decode_feed(record))
        for part in data.log:
            data.epochs[part] = data.fence[part] = max(data.epochs[part], state.epoch) + 1
        data.ddl_fence = max(data.ddl.epoch, state.epoch) + 1
        data.closed = True
        return True

    # -- what people do
    def ask(self, do: Callable[[FeedsState], FeedsDecision[object]]) -> bool:
        """Of the coordinator, if there is one that can be reached."""
        for capture in self.captures.values():
            host = capture.coordinator
            if not capture.up or host is None or self.now < capture.paused_until or not capture.reaches_store():
                continue
            try:
                decision = do(host.machine.state)
            except UserError:
                return False
            records, index = list(decision.records), host.index
            self.in_process(capture, capture.incarnation, partial(host.write, records))
            return host.index > index
        return False

    # -- faults
    def fault(self, name: str, every_s: float) -> None:
        if self.healed:
            return
        self.count[f"fault {name}"] += 1
        capture = self.captures[self.rng.randrange(len(self.captures))]
        getattr(self, f"_{name}")(capture)
        self.after(self.rng.expovariate(1 / every_s), self.fault, name, every_s)

    def _crash(self, capture: Capture) -> None:
        leader = next((c for c in self.captures.values() if c.up and (c.coordinator or c.maintainers)), capture)
        self.crash(capture if self.rng.random() < 0.6 else leader)

    def _pause(self, capture: Capture) -> None:
        capture.paused_until = self.now + self.rng.expovariate(1 / 4)

    def _cut(self, capture: Capture) -> None:
        side = {n for n in self.captures if self.rng.random() < 0.5}
        self.cut = {(a, b) for a in side for b in self.captures if b not in side}
        if self.rng.random() < 0.6:
            self.cut |= {(b, a) for a, b in self.cut}
        self.after(self.rng.expovariate(1 / 6), self.cut.clear)

    def _store_cut(self, capture: Capture) -> None:
        self.store_cut.add(capture.id)
        self.after(self.rng.expovariate(1 / 5), self.store_cut.discard, capture.id)

    def _all(self, capture: Capture) -> None:
        for each in self.captures.values():
            self.crash(each)

    def _feed_pause(self, capture: Capture) -> None:
        feed = self.rng.choice(sorted(self.data))
        self.ask(lambda state: state.pause(feed))
        self.after(4.0, self.ask, lambda state: state.resume(feed))

    def _update(self, capture: Capture) -> None:
        feed = self.people.choice(sorted(self.data))
        spec = self.data[feed].rules.another(self.people, sorted(self.data[feed].tables))
        self.ask(lambda state: state.change(spec))

    def _rewind(self, capture: Capture) -> None:
        """Back or forward, perhaps so soon after the pause that nobody has noticed it."""
        feed = self.people.choice(sorted(self.data))
        position = self.people.randint(BEGINNING, max(BEGINNING, self.data[feed].available))
        if self.ask(lambda state: state.pause(feed)):
            soon = self.people.random() < 0.5
            self.after(0.01 if soon else 3.0, self.ask, lambda state: state.resume(feed, position=position))

    def _sick(self, capture: Capture) -> None:
        """One table, or two, cannot be written for a while: they must not stop the others."""
        tables = sorted({table for data in self.data.values() for table in data.tables})
        self.sick = set(self.rng.sample(tables, 2))
        self.after(self.rng.uniform(3, 15), self.sick.clear)
        if self.rng.random() < 0.2:                       # or the sink refuses one changefeed: that fails as a whole
            self.denied = {self.rng.choice(sorted(self.data))}
            self.after(self.rng.uniform(1, 4), self.denied.clear)

    # -- the log
    def _of_log(self, name: str, every_s: float) -> None:
        """Until the end: also the healed world has retention."""
        if name == "log_cut" or not self.healed:
            self.count[f"fault {name}"] += 1
            data = self.data[self.log.choice(sorted(self.data))]
            if name == "log_cut":
                data.kept.cut(self.log)
            elif name == "log_release":
                data.kept.release(self.log.choice(sorted(data.log)))
            else:
                data.kept.copy(self.log.choice(sorted(data.tables)))
        self.after(self.log.expovariate(1 / every_s), self._of_log, name, every_s)

    def _copy_needed(self) -> None:
        """People do what they are told to: what needs a copy gets one."""
        for data in self.data.values():
            for table in sorted(data.needs):
                data.kept.copy(table)
        self.after(4.0, self._copy_needed)

    def _split(self, capture: Capture) -> None:
        for host in capture.maintainers.values() if capture.up else ():
            placing, by_table = host.machine.placing, host.machine.state.by_table
            for spans in list(by_table.values()):
                wide = [span.id for span in spans.values() if len(span.span.partitions) > 1]
                try:
                    if wide:
                        placing.split(wide[0], self.now)
                    elif len(spans) > 1:
                        placing.merge(tuple(spans), self.now)
                except InvalidRequest:
                    self.count["operator refused"] += 1

    def _move(self, capture: Capture) -> None:
        for host in capture.maintainers.values() if capture.up else ():
            host.wish = (self.rng.randrange(64), self.rng.randrange(len(self.captures)))

    def _remove(self) -> None:
        feed = sorted(self.data)[-1]
        if not self.healed and self.ask(lambda state: state.remove(feed)):
            self.removed = feed

    # -- the run
    def heal(self) -> None:
        self.healed = True
        self.cut, self.store_cut, self.sick, self.denied = set(), set(), set(), set()
        for capture in self.captures.values():
            capture.paused_until = 0.0
            self.start(capture)
            for host in capture.maintainers.values():
                host.broken = False
        self.after(2.0, self._copy_needed)
        for delay_s in (1.0, 20.0, 40.0):
            for feed in self.data:
                if feed != self.laid_aside:
                    self.after(delay_s, self.ask, lambda state, feed=feed: state.resume(feed))

    def _cut_for_ever(self) -> None:
        """One link never heals, in one direction or both; or one capture stays mute towards everybody."""
        a, b = self.rng.sample(sorted(self.captures), 2)
        self.cut_for_ever = {(a, b)} | ({(b, a)} if self.rng.random() < 0.5 else set())
        if self.rng.random() < 0.4:
            self.mute = a
            self.cut_for_ever |= {(a, n) for n in self.captures} | {(n, a) for n in self.captures}

    def _silence(self) -> None:
        """Nobody hears one capture from now on, which hears everybody. Whoever had heard it as coordinator is gone, and
        what it maintains is laid aside before a successor gives that to another: only the capture itself can end it."""
        fit = [c for c in self.captures.values() if c.up and c.maintainers and c.coordinator is None]
        if not fit:
            self.after(1.0, self._silence)
            return
        silent = self.odd.choice(fit)
        self.count["silenced"] += 1
        self.mute = silent.id
        self.cut_for_ever |= {(silent.id, n) for n in self.captures}
        for capture in self.captures.values():
            if capture.coordinator is not None:
                self.crash(capture)
        self._lay_aside(next(iter(silent.maintainers)), self.now + SESSION_S)

    def _lay_aside(self, feed: str, until: float) -> None:
        if self.healed or self.now > until:
            return
        if self.ask(lambda state: state.pause(feed)):
            self.count["laid aside"] += 1
            self.laid_aside = feed
        else:
            self.after(TICK_S, self._lay_aside, feed, until)

    def _source(self) -> None:
        for data in self.data.values():
            data.available += 1
        self.after(LSN_S, self._source)

    def _check(self) -> None:
        checkers.check_waiting(self)
        self.after(CHECK_S, self._check)

    def measured(self) -> Measured:
        facts = f"{self.now:.1f} s, records {self.crc:08x}, {dict(self.count)}"
        return Measured(self.count["messages"], self.crc, facts)

    def run(self) -> None:
        self.after(LSN_S, self._source)
        self.after(CHECK_S, self._check)
        for name, every_s in self.faults.every.items():
            if every_s:
                self.after(self.rng.expovariate(1 / every_s), self.fault, name, every_s)
        for name, every_s in self.faults.of_log.items():
            if every_s:
                self.after(self.log.expovariate(1 / every_s), self._of_log, name, every_s)
        if self.faults.remove and len(self.data) > 1:
            self.after(self.rng.uniform(5, FAULTS_S), self._remove)
        if self.faults.forever and len(self.captures) > 2:
            early = self.rng.random() < 0.7
            self.after(self.rng.uniform(3, 25) if early else FAULTS_S, self._cut_for_ever)
        if self.faults.silence and len(self.captures) > 2:
            self.after(self.odd.uniform(3, 15), self._silence)
        self.until(FAULTS_S)
        self.heal()
        self.until(FAULTS_S + 10)
        while stalls := checkers.stalls(self):
            if self.now >= FAULTS_S + HEAL_S:
                raise Violation("stall: " + "; ".join(stalls[:4]))
            self.until(self.now + CHECK_S)
