"""The coordinator of the groups of one partition, as long as this broker leads it in one epoch [L20, L21].

    LOADING ──log replayed──▶ SERVING ──leader, lease or the outcome of an append lost──▶ OVER
       └───────────────────────── the same, or records that cannot be read ────────────────▲

In: requests, time, outcomes of appends. Out: answers, each exactly once; batches appended to the partition.
Promise: nothing is told before the records it stands on are committed. An append whose outcome nobody knows ends this
coordinator: the next one, here or elsewhere, begins from the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from uuid import UUID

import structlog

from millrace import limits
from millrace.core.groups.calls import Answer, Append, Code, Effect, Instant, Joined, Moved, Reply, Token
from millrace.core.groups.digest import Digest, Encoded
from millrace.core.groups.groups import Groups
from millrace.core.groups.moving import decide
from millrace.errors import Damaged, MillraceError, PolicyViolation
from millrace.log.files.partition_log import Appended
from millrace.log.groups.loading import load, replay_header
from millrace.log.partition import Host, Partition
from millrace.model.groups import GroupRecord, encode_key, encode_value
from millrace.model.position_calls import AnyPositionCall
from millrace.model.positions import PositionKey
from millrace.wire.records import Record, build_batch

log = structlog.get_logger(__name__)

Told = Callable[[Reply | Code], None]
Request = Callable[[Groups, Instant, Token], Iterable[Effect]]


class Coordinator:
    def __init__(
        self, partition: Partition, host: Host, *, on_over: Callable[[Coordinator], None],
        topic_id_of: Callable[[str], UUID | None],
    ) -> None:
        self.partition, self.epoch = partition, partition.replica.leader_epoch
        self._host, self._on_over, self._topic_id_of = host, on_over, topic_id_of
        self._loop = asyncio.get_running_loop()
        self.groups: Groups | None = None               # None: loading, or over
        self._digest = Digest()
        self._refusal = Code.COORDINATOR_LOAD_IN_PROGRESS
        self._is_over = False
        self._token = 0
        self._owed: dict[Token, Told] = {}
        self._todo: deque[Effect] = deque()
        self._doing = False
        self._outcomes: deque[tuple[Callable[[], Iterable[Effect]], MillraceError | None]] = deque()
        self._loading = self._loop.create_task(self._load())

    def leads(self) -> bool:
        replica = self.partition.replica
        return (
            not self._is_over and replica.is_leader and replica.leader_epoch == self.epoch
            and not self.partition.failed and self._host.lease_valid()
        )

    def _now(self) -> Instant:
        clock = self._host.ports.clock
        return Instant(clock.now(), int(clock.wall() * 1000))

    # -- loading -------------------------------------------------------------------------------------------------------
    async def _load(self) -> None:
        try:
            groups, self._digest = await load(self.partition)
        except Damaged as error:
            self._refusal = Code.COORDINATOR_NOT_AVAILABLE
            log.error("a partition of the group topic cannot be read: its groups are not served",
                      partition=repr(self.partition), code=error.code, error=str(error))
            return
        except MillraceError:
            self.end()                      # who leads now loads it
            return
        groups.loaded(self._now())
        self.groups = groups
        self.topics_changed()               # topics may have gone while nobody coordinated these groups

    # -- requests ------------------------------------------------------------------------------------------------------
    def ask(self, request: Request, told: Told) -> None:
        """`told` is called once, now or later: with the reply, or with the code that stands for it."""
        groups = self.now()
        if isinstance(groups, Code):
            told(groups)
            return
        self._do(request(groups, self._now(), self._owe(told)))

    def move(self, key: PositionKey, call: AnyPositionCall, told: Told) -> None:
        """A stored position, by compare-and-set: decided on what was appended, told once that is committed."""
        groups = self.now()
        if isinstance(groups, Code):
            told(groups)
            return
        try:
            record, reply, after = decide(groups.positions, key, call)
            if record is not None:
                after = self._store((_encoded(record),)).base
                groups.replay(after, record)
        except MillraceError as error:                  # nothing of it was written
            told(Moved(None, error))
            return
        self._do([Answer(self._owe(told), Moved(reply), after)])

    def _owe(self, told: Told) -> Token:
        self._token += 1
        self._owed[self._token] = told
        return self._token

    def now(self) -> Groups | Code:
        if not self.leads():
            self.end()
        if self.groups is None:
            return Code.NOT_COORDINATOR if self._is_over else self._refusal
        return self.groups

    def tick(self) -> bool:
        """Sessions and rebalances; True while there is more to come."""
        groups = self.now()
        if isinstance(groups, Code):
            return not self._loading.done()
        self._do(groups.tick(self._now()))
        return groups.deadline_s() is not None

    def expire(self) -> None:
        if self.groups is not None and self.leads():
            self._do(self.groups.expire(self._now()))
        self.topics_changed()               # a commit may have been on its way when its topic went

    def topics_changed(self) -> None:
        """Offsets of topics that are gone go, too. A topic that is not known here is gone: an offset is committed only
        for a topic its coordinator knows, and whoever leads after it has replayed more of the controller's records."""
        if self.groups is not None and self.leads():
            self._do(self.groups.topics_gone(self._topic_id_of))

    # -- effects -------------------------------------------------------------------------------------------------------
    def _do(self, effects: Iterable[Effect]) -> None:
        """In the order they were decided in, also those that come while others are carried out."""
        self._todo.extend(effects)
        if self._doing:
            return
        self._doing = True
        try:
            while self._todo:
                effect = self._todo.popleft()
                if isinstance(effect, Append):
                    self._append(effect)
                elif effect.after < 0:
                    self._answer(effect)
                else:
                    self._when_committed(effect.after + 1, partial(self._answer, effect))
        finally:
            self._doing = False

    def _answer(self, answer: Answer) -> tuple[Effect, ...]:
        told = self._owed.pop(answer.token, None)
        if told is not None:
            reply = answer.reply
            if isinstance(reply, Joined) and reply.code is Code.NONE and reply.member_id == reply.leader:
                self._host.stats.group_rebalances += 1
            told(reply)
        return ()

    def _append(self, append: Append) -> None:
        assert self.groups is not None
        try:
            written = self._store(tuple(map(_encoded, append.records)))
        except MillraceError as error:                  # nothing of it was written
            if not error.retriable:
                log.error("a change of a group cannot be stored", partition=repr(self.partition), code=error.code,
                          error=str(error))
            self._todo.extend(self.groups.failed(self._now(), append.id))
            return
        self._when_committed(written.end, partial(self._committed, append.id))

    def _committed(self, append: int) -> Iterable[Effect]:
        return self.groups.committed(self._now(), append) if self.groups is not None else ()

    def _when_committed(self, end: int, then: Callable[[], Iterable[Effect]]) -> None:
        deadline = self._host.ports.clock.now() + limits.GROUP_APPEND_S
        self.partition.when_acked(end, acks=-1, deadline=deadline, done=partial(self._outcome, then))

    def _outcome(self, then: Callable[[], Iterable[Effect]], error: MillraceError | None) -> None:
        """Called from inside the partition, which must not be written to before it has finished."""
        if not self._outcomes:
            self._loop.call_soon(self._settle)
        self._outcomes.append((then, error))

    def _settle(self) -> None:
        outcomes, self._outcomes = self._outcomes, deque()
        for then, error in outcomes:
            if error is not None:
                self.end()
            if self.groups is not None:
                self._do(then())

    # -- the log -------------------------------------------------------------------------------------------------------
    def _store(self, records: tuple[Encoded, ...]) -> Appended:
        """Raises why nothing of it was written."""
        if not self._digest.has_room(records):
            raise PolicyViolation(f"{limits.GROUP_KEYS_MAX} offsets and groups are stored in one partition")
        self._restate_some()
        return self._write(records, replay_from=self._digest.replay_from)

    def _write(self, records: Sequence[Encoded], *, replay_from: int) -> Appended:
        """One batch, acknowledged by nobody yet."""
        now_ms = int(self._host.ports.clock.wall() * 1000)
        batch = [Record(value, key, timestamp_ms=now_ms) for key, value in records]
        batch[0] = batch[0]._replace(headers=replay_header(replay_from))
        written = self.partition.append(memoryview(build_batch(batch)), acks=-1)
        for record in records:
            self._digest.note(record)
        return written

    def _restate_some(self) -> None:
        """Before a change, where it is time for it: a piece of what is alive is written once more."""
        digest = self._digest
        if not digest.begin_if_due(self.partition.log.log_end):
            return
        piece, rest = digest.piece()
        if piece:
            self._write(piece, replay_from=digest.replay_from)
        digest.restated(rest)

    # -- end -----------------------------------------------------------------------------------------------------------
    def end(self) -> None:
        """Whoever waits here is sent to look for the coordinator again."""
        if self._is_over:
            return
        self._is_over = True
        groups, self.groups = self.groups, None
        self._todo.clear()
        if not self._loading.done():
            self._loading.cancel()
        for effect in groups.resigned() if groups is not None else ():
            if isinstance(effect, Answer):
                self._answer(effect)
        owed, self._owed = self._owed, {}
        for told in owed.values():
            told(Code.NOT_COORDINATOR)
        self._on_over(self)


def _encoded(record: GroupRecord) -> Encoded:
    return Encoded(encode_key(record.key), None if record.value is None else encode_value(record.value))
