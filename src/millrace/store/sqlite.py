"""The embedded store: SQLite files in one directory, shared by the processes of one machine.

In: the calls of `contract.Store`. Out: their answers; each office is one database file with a thread of its own, so a
slow or stuck office holds up no other. Leases are counted on the clock port, which all processes of one boot share; a
holder of another boot is gone.

    <directory>/office-<name>.db    state (one JSON row), records, snapshot
    <directory>/members.db          leases of members
    <directory>/processes/          who uses the directory (see sqlite_guard)
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from millrace import limits
from millrace.errors import ConfigError, DiskFull, StoreUnreachable
from millrace.model.ids import ProcessIdentity
from millrace.ops.ports import Ports
from millrace.ops.real import boot_of
from millrace.store import rules, sqlite_guard
from millrace.store.contract import RECORD_FORMAT, Candidate, Holder, MemberLease
from millrace.store.rules import OfficeState
from millrace.store.sqlite_file import DatabaseFile
from millrace.store.sqlite_guard import LOOK_S, Lookout, Participants
from millrace.store.waiting import Wakers

T = TypeVar("T")
_MemberRow = tuple[str, int, float, float, str, int, int, bytes]

OFFICE_SCHEMA = """
CREATE TABLE office (id INTEGER PRIMARY KEY CHECK (id = 1), state TEXT NOT NULL);
CREATE TABLE record (idx INTEGER PRIMARY KEY, format INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE snapshot (id INTEGER PRIMARY KEY CHECK (id = 1), idx INTEGER NOT NULL, format INTEGER NOT NULL,
                       data BLOB NOT NULL);
"""
MEMBERS_SCHEMA = """
CREATE TABLE member (name TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, ttl_s REAL NOT NULL, expires_at REAL NOT NULL,
                     boot_id TEXT NOT NULL, pid INTEGER NOT NULL, start_time INTEGER NOT NULL, info BLOB NOT NULL);
"""
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def file_name(office: str) -> str:
    """Injective, also where file names ignore case: everything but lower case, digits, - and _ becomes %xx."""
    rules.check_name(office)
    parts = [chr(byte) if chr(byte) in _SAFE else f"%{byte:02x}" for byte in office.encode()]
    name = f"office-{''.join(parts)}.db"
    if len(name) > 240:
        raise ConfigError(f"office name {office!r} is too long for a file: use fewer special characters")
    return name


class _Room:
    """One database with its thread, and what this process last knew of its office."""

    def __init__(self, file: DatabaseFile, name: str) -> None:
        self.file = file
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"store-{name}")
        self.changed = Wakers()
        self.seen_version = -1
        self.seen_state = rules.NEVER_HELD
        self.vacated_by: ProcessIdentity | None = None


class SqliteStore:
    """See the module. Calls that change wait for the disk; calls that only look never wait for a writer."""

    def __init__(self, directory: str, ports: Ports) -> None:
        self._directory = os.path.abspath(directory)
        self._ports = ports
        self._boot = boot_of(ports.processes.me().boot_id)
        self._participants = Participants(self._directory)
        self._rooms: dict[str, _Room] = {}
        try:
            self._participants.enter()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"store: no space left under {self._directory}: free some") from error
            raise ConfigError(f"store: cannot use directory {self._directory}: {error.strerror}") from error

    # -- offices ---------------------------------------------------------------------------------------------------
    async def acquire(self, office: str, candidate: Candidate, ttl_s: float) -> int:
        room = self._office(office)

        def look(connection: sqlite3.Connection) -> OfficeState:
            return self._next_holder(_load(connection, room), candidate, office, ttl_s)

        def step(connection: sqlite3.Connection) -> OfficeState:
            return _save(connection, look(connection))

        def work(deadline: float) -> int:
            # Looking first keeps candidates away from the write lock as long as there is a holder.
            room.vacated_by = None
            room.file.read(look, deadline=deadline)
            held_by = room.seen_state.candidate
            room.vacated_by = held_by.process if held_by is not None else None
            room.seen_state = room.file.change("acquire", step, deadline=deadline)
            return room.seen_state.token

        return await self._run(room, work, changes=True)

    async def renew(self, office: str, token: int, ttl_s: float) -> None:
        def step(state: OfficeState) -> OfficeState:
            rules.refuse_stale(state, token, office=office)
            return self._with_lease(state, ttl_s)

        await self._change(office, "renew", step)

    async def release(self, office: str, token: int) -> None:
        await self._change(office, "release", lambda state: rules.released(state, token, office=office))

    async def grant(self, office: str, candidate: Candidate, epoch: int) -> None:
        await self._change(office, "grant", lambda state: rules.granted(state, candidate, epoch, office=office))

    async def holder(self, office: str) -> Holder | None:
        room = self._office(office)
        state = await self._run(
            room, lambda deadline: room.file.read(lambda connection: _load(connection, room), deadline=deadline)
        )
        left_s = state.expires_at - self._ports.clock.now()
        return rules.holder_of(state, expires_in_s=min(left_s, state.ttl_s), vacant=self._is_vacant(state))

    # -- history ---------------------------------------------------------------------------------------------------
    async def append(self, office: str, token: int, expected_index: int, records: Sequence[bytes]) -> int:
        rules.check_records(records)
        rows = [(index, RECORD_FORMAT, data) for index, data in enumerate(records, start=expected_index + 1)]

        def step(connection: sqlite3.Connection, state: OfficeState) -> OfficeState:
            state = rules.appended(state, token, expected_index, len(rows), office=office)
            connection.executemany("INSERT INTO record (idx, format, data) VALUES (?, ?, ?)", rows)
            return state

        return (await self._change_with(office, "append", step)).index

    async def read(self, office: str, after_index: int, limit: int) -> list[tuple[int, bytes]]:
        room = self._office(office)

        def step(connection: sqlite3.Connection) -> list[tuple[int, int, bytes]]:
            rules.refuse_compacted(_load(connection, room), after_index, office=office)
            query = "SELECT idx, format, data FROM record WHERE idx > ? ORDER BY idx LIMIT ?"
            return connection.execute(query, (after_index, max(0, limit))).fetchall()

        rows = await self._run(room, lambda deadline: room.file.read(step, deadline=deadline))
        for index, found, _ in rows:
            rules.check_record_format(found, office=office, index=index)
        return [(index, data) for index, _, data in rows]

    async def save_snapshot(self, office: str, token: int, index: int, blob: bytes) -> None:
        rules.check_snapshot(blob)

        def step(connection: sqlite3.Connection, state: OfficeState) -> OfficeState:
            state = rules.snapshotted(state, token, index, office=office)
            connection.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?)", (index, RECORD_FORMAT, blob))
            connection.execute("DELETE FROM record WHERE idx <= ?", (index,))
            return state

        await self._change_with(office, "save_snapshot", step)

    async def load_snapshot(self, office: str) -> tuple[int, bytes] | None:
        room = self._office(office)

        def step(connection: sqlite3.Connection) -> tuple[int, int, bytes] | None:
            row: tuple[int, int, bytes] | None = connection.execute("SELECT idx, format, data FROM snapshot").fetchone()
            return row

        row = await self._run(room, lambda deadline: room.file.read(step, deadline=deadline))
        if row is None:
            return None
        rules.check_record_format(row[1], office=office, index=row[0])
        return row[0], row[2]

    async def watch(
        self, office: str, after_index: int, timeout_s: float, *, known_token: int | None = None
    ) -> int:
        room = self._office(office)
        before = None if known_token is None else (known_token, False)
        ends_at = time.monotonic() + timeout_s
        while True:
            state, who = await self._run(room, lambda deadline: self._peek(room, deadline))
            before = before or who
            left_s = ends_at - time.monotonic()
            if state.index > after_index or who != before or left_s <= 0:
                return state.index
            process = None if state.candidate is None or who[1] else state.candidate.process
            await room.changed.wait(self._patience_s(state, left_s), process=process)

    # -- members ---------------------------------------------------------------------------------------------------
    async def lease(self, member: str, incarnation: int, ttl_s: float, info: bytes) -> None:
        rules.check_name(member)
        me = self._ports.processes.me()
        expires_at = self._ports.clock.now() + ttl_s
        row = (member, incarnation, ttl_s, expires_at, me.boot_id, me.pid, me.start_time, info)

        def step(connection: sqlite3.Connection) -> None:
            known = connection.execute("SELECT * FROM member WHERE name = ?", (member,)).fetchone()
            if known is not None:
                self._refuse_lease(incarnation, known)
            connection.execute("INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

        room = self._members()
        await self._run(room, lambda deadline: room.file.change("lease", step, deadline=deadline))

    def _refuse_lease(self, given: int, known: _MemberRow) -> None:
        member, incarnation, ttl_s, expires_at, boot_id, pid, start_time, _ = known
        rules.refuse_stale_incarnation(member, given=given, stored=incarnation)
        holder = ProcessIdentity(boot_id, pid, start_time)
        over = not self._lasts(ttl_s, expires_at) or self._is_past(holder)
        rules.refuse_living_other(member, holder, over=over, processes=self._ports.processes)

    def _lasts(self, ttl_s: float, expires_at: float) -> bool:
        """One that ends later than it could have been given is of another clock."""
        now = self._ports.clock.now()
        return now < expires_at <= now + ttl_s + rules.CLOCK_SLACK_S

    async def leases(self) -> list[MemberLease]:
        def step(connection: sqlite3.Connection) -> list[_MemberRow]:
            return connection.execute("SELECT * FROM member ORDER BY name").fetchall()

        room = self._members()
        rows = await self._run(room, lambda deadline: room.file.read(step, deadline=deadline))
        now = self._ports.clock.now()
        return [
            MemberLease(name, incarnation, expires_at - now, ttl_s - (expires_at - now), info)
            for name, incarnation, ttl_s, expires_at, boot_id, pid, start_time, info in rows
            if self._lasts(ttl_s, expires_at) and not self._is_past(ProcessIdentity(boot_id, pid, start_time))
        ]

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        rooms, self._rooms = list(self._rooms.values()), {}
        for room in rooms:
            await loop.run_in_executor(room.executor, room.file.close)
            room.executor.shutdown(wait=True)

    # -- inside: rooms -----------------------------------------------------------------------------------------------
    def _office(self, office: str) -> _Room:
        return self._room(file_name(office), OFFICE_SCHEMA, synchronous="FULL")

    def _members(self) -> _Room:
        # Leases need not survive a power cut: after it they belong to another boot.
        return self._room("members.db", MEMBERS_SCHEMA, synchronous="NORMAL")

    def _room(self, name: str, schema: str, *, synchronous: str) -> _Room:
        room = self._rooms.get(name)
        if room is None:
            path = os.path.join(self._directory, name)
            file = DatabaseFile(path, schema, self._participants, self._ports.buggify, synchronous=synchronous)
            room = self._rooms[name] = _Room(file, name)
        return room

    async def _run(self, room: _Room, work: Callable[[float], T], *, changes: bool = False) -> T:
        """`work` on the room's thread within the call's time, with a lookout for processes that hold it up."""
        deadline = time.monotonic() + limits.STORE_CALL_S

        def on_time() -> T:
            if time.monotonic() >= deadline:
                raise StoreUnreachable(f"{room.file.path}: the calls before this one took too long")
            return work(deadline)

        job = asyncio.get_running_loop().run_in_executor(room.executor, on_time)
        job.add_done_callback(_retrieve)
        lookout: Lookout | None = None
        while not (await asyncio.wait({job}, timeout=LOOK_S))[0]:
            lookout = lookout or Lookout(room.file.path, self._participants)
            stuck = lookout.look(time.monotonic(), room.vacated_by)
            if stuck is not None:
                sqlite_guard.kill(stuck, why=f"stuck inside a call on {room.file.path}")
            if time.monotonic() > deadline + 2 * LOOK_S:
                raise StoreUnreachable(f"{room.file.path}: no answer within {limits.STORE_CALL_S} s")
        answer = job.result()
        if changes:
            room.changed.wake()
        return answer

    # -- inside: states ----------------------------------------------------------------------------------------------
    async def _change(self, office: str, name: str, step: Callable[[OfficeState], OfficeState]) -> OfficeState:
        return await self._change_with(office, name, lambda _, state: step(state))

    async def _change_with(
        self, office: str, name: str, step: Callable[[sqlite3.Connection, OfficeState], OfficeState]
    ) -> OfficeState:
        room = self._office(office)

        def change(connection: sqlite3.Connection) -> OfficeState:
            return _save(connection, step(connection, _load(connection, room)))

        def work(deadline: float) -> OfficeState:
            room.seen_state = room.file.change(name, change, deadline=deadline)
            return room.seen_state

        return await self._run(room, work, changes=True)

    def _next_holder(self, state: OfficeState, candidate: Candidate, office: str, ttl_s: float) -> OfficeState:
        vacant = self._is_vacant(state)
        return self._with_lease(rules.acquired(state, candidate, office=office, vacant=vacant, ttl_s=ttl_s), ttl_s)

    def _with_lease(self, state: OfficeState, ttl_s: float) -> OfficeState:
        return msgspec.structs.replace(state, ttl_s=ttl_s, expires_at=self._ports.clock.now() + ttl_s)

    def _is_vacant(self, state: OfficeState) -> bool:
        over = rules.is_over(state, self._ports.clock.now())
        if state.candidate is not None and boot_of(state.candidate.process.boot_id) != self._boot:
            over = True
        return rules.is_vacant(state, over=over, processes=self._ports.processes)

    def _is_past(self, process: ProcessIdentity) -> bool:
        return boot_of(process.boot_id) != self._boot or self._ports.processes.is_gone(process)

    def _patience_s(self, state: OfficeState, left_s: float) -> float:
        """Until the next look: the file's turn, or the end of the lease, if that is sooner."""
        lease_s = state.expires_at - self._ports.clock.now()
        return min(left_s, limits.STORE_WATCH_POLL_S, lease_s if lease_s > 0 else left_s)

    def _peek(self, room: _Room, deadline: float) -> tuple[OfficeState, tuple[int, bool]]:
        """The state, read again only when another connection has committed since."""
        version = room.file.version(deadline=deadline)
        if version != room.seen_version:
            room.file.read(lambda connection: _load(connection, room), deadline=deadline)
            room.seen_version = version
        return room.seen_state, (room.seen_state.token, self._is_vacant(room.seen_state))


def _load(connection: sqlite3.Connection, room: _Room) -> OfficeState:
    row = connection.execute("SELECT state FROM office").fetchone()
    state = rules.NEVER_HELD if row is None else rules.decode_state(row[0], where=room.file.path)
    room.seen_state = state
    return state


def _save(connection: sqlite3.Connection, state: OfficeState) -> OfficeState:
    connection.execute("INSERT OR REPLACE INTO office VALUES (1, ?)", (rules.encode_state(state).decode(),))
    return state


def _retrieve(job: asyncio.Future[T]) -> None:
    """A caller that gave up leaves nobody to look at the error."""
    if not job.cancelled():
        job.exception()
