"""The store for several machines: etcd v3.

In: the calls of `contract.Store`. Out: their answers. Each office has one state key; every change is one transaction
that compares the revision at which that key was last written, so two changes never start from the same state. A tenure
is a key under an etcd lease: no key, no tenure. etcd's leases have whole seconds, and at least 2 s with its defaults.

    <prefix>/o/<office>/state                the office's state (JSON)
    <prefix>/o/<office>/tenure               the token, under the holder's lease
    <prefix>/o/<office>/log/<last index>     all records of one append, in one value: an append cannot be torn
    <prefix>/o/<office>/snapshot-at          which snapshot counts
    <prefix>/o/<office>/snapshot/<name>/<n>  its chunks, written before the transaction that names them
    <prefix>/m/<member>, <prefix>/i/<member> a member under its lease; its highest incarnation, kept
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, unquote

import msgspec

from millrace import limits
from millrace.errors import ConfigError, IndexConflict, MillraceError, StoreUnreachable
from millrace.model.ids import ProcessIdentity
from millrace.ops.ports import Ports
from millrace.store import rules
from millrace.store.contract import RECORD_FORMAT, STORE_FORMAT, Candidate, Holder, MemberLease
from millrace.store.etcd_client import Answer, EtcdClient, KeyValue, delete, exists, get, put, unchanged
from millrace.store.rules import NEVER_HELD, OfficeState
from millrace.store.waiting import Wakers

P = ParamSpec("P")
T = TypeVar("T")

PAGE_KEYS = 32  # values of one read: 32 MiB at most, and one round trip for 32 small appends
CHUNK_BYTES = limits.STORE_APPEND_BYTES_MAX


class _Snapshot(msgspec.Struct, frozen=True):
    """The value of snapshot-at."""

    format: int
    index: int
    name: str
    chunk_count: int


class _Member(msgspec.Struct, frozen=True):
    format: int
    incarnation: int
    process: ProcessIdentity
    info: bytes


class _View(NamedTuple):
    """An office at one revision. `tenure`: the key that says who has it, None when the lease is over."""

    state: OfficeState
    state_revision: int
    tenure: KeyValue | None
    revision: int

    @property
    def is_over(self) -> bool:
        return self.tenure is None or self.tenure.value != _token_value(self.state.token)


class _Change(NamedTuple):
    """A step of an office. One that gives or takes the tenure always writes the state too, so its revision moves."""

    state: OfficeState
    operations: Sequence[Any] = ()
    compares: Sequence[Any] = ()
    keeps_tenure: bool = True


class _Keys:
    """The keys of one office."""

    def __init__(self, prefix: str, office: str) -> None:
        rules.check_name(office)
        base = f"{prefix}/o/{quote(office, safe='')}"
        self.where = base
        self.state = f"{base}/state".encode()
        self.tenure = f"{base}/tenure".encode()
        self.snapshot_at = f"{base}/snapshot-at".encode()
        self._base = base

    def log(self, last_index: int) -> bytes:
        return f"{self._base}/log/{last_index:016x}".encode()

    @property
    def log_end(self) -> bytes:
        return f"{self._base}/log0".encode()  # "0" follows "/"

    def chunks(self, name: str) -> tuple[bytes, bytes]:
        return f"{self._base}/snapshot/{name}/".encode(), f"{self._base}/snapshot/{name}0".encode()

    @property
    def all_chunks(self) -> tuple[bytes, bytes]:
        return f"{self._base}/snapshot/".encode(), f"{self._base}/snapshot0".encode()


def _bounded(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A call of several round trips ends, as a whole, within the time of a call."""

    @functools.wraps(call)
    async def within(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            async with asyncio.timeout(limits.STORE_CALL_S):
                return await call(*args, **kwargs)
        except TimeoutError:
            raise StoreUnreachable(f"store: {call.__name__}: no answer within {limits.STORE_CALL_S} s") from None

    return within


def parse_url(url: str) -> tuple[list[str], str]:
    """Endpoints and prefix of "etcd://host:port[,host:port]/prefix"."""
    hosts, _, prefix = url.removeprefix("etcd://").partition("/")
    endpoints = hosts.split(",")
    if not url.startswith("etcd://") or not all(_is_address(endpoint) for endpoint in endpoints):
        raise ConfigError(f"store: {url!r} is not an etcd address: use etcd://host:port[,host:port]/prefix")
    return endpoints, "/" + (prefix.strip("/") or "millrace")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit() and 0 < int(port) < 65536


class EtcdStore:
    def __init__(self, endpoints: Sequence[str], prefix: str, ports: Ports) -> None:
        self._etcd = EtcdClient(endpoints)
        self._prefix = prefix
        self._ports = ports
        self._views: dict[str, _View] = {}  # as last seen; a change that starts from an old one fails its compare
        self._members: dict[str, tuple[_Member, int, int]] = {}  # what this process leased: value, lease, seconds

    # -- offices ---------------------------------------------------------------------------------------------------
    @_bounded
    async def acquire(self, office: str, candidate: Candidate, ttl_s: float) -> int:
        keys = self._keys(office)
        view = await self._look(keys, office)
        self._next_holder(view, candidate, office, ttl_s)  # refused before a lease is made
        lease = await self._etcd.grant_lease(_seconds(ttl_s))

        def step(view: _View) -> _Change:
            state = self._next_holder(view, candidate, office, ttl_s)
            return _Change(state, [put(keys.tenure, _token_value(state.token), lease)], keeps_tenure=False)

        try:
            return (await self._change(office, "acquire", step)).token
        except MillraceError:
            await self._forget_lease(lease)
            raise

    @_bounded
    async def renew(self, office: str, token: int, ttl_s: float) -> None:
        view = await self._look(self._keys(office), office)
        rules.refuse_stale(view.state, token, office=office)
        if not view.state.leased:
            return
        same_length = _seconds(ttl_s) == _seconds(view.state.ttl_s)
        lease = 0 if view.tenure is None or view.is_over else view.tenure.lease
        self._ports.buggify("store.renew.begun")
        if lease and same_length and await self._etcd.keep_alive(lease):
            self._ports.buggify("store.renew.after_commit")
            return
        await self._restore_tenure(office, token, ttl_s)

    async def _restore_tenure(self, office: str, token: int, ttl_s: float) -> None:
        """The lease ended, but nobody came: the office goes on under a new one."""
        lease = await self._etcd.grant_lease(_seconds(ttl_s))

        def step(view: _View) -> _Change:
            rules.refuse_stale(view.state, token, office=office)
            state = msgspec.structs.replace(view.state, ttl_s=ttl_s)
            tenure = put(self._keys(office).tenure, _token_value(token), lease)
            return _Change(state, [tenure], keeps_tenure=False)

        try:
            await self._change(office, "renew", step)
        except MillraceError:
            await self._forget_lease(lease)
            raise

    @_bounded
    async def release(self, office: str, token: int) -> None:
        def step(view: _View) -> _Change:
            state = rules.released(view.state, token, office=office)
            return _Change(state, [delete(self._keys(office).tenure)], keeps_tenure=False)

        await self._change(office, "release", step)

    @_bounded
    async def grant(self, office: str, candidate: Candidate, epoch: int) -> None:
        await self._change(
            office, "grant", lambda view: _Change(rules.granted(view.state, candidate, epoch, office=office))
        )

    @_bounded
    async def holder(self, office: str) -> Holder | None:
        view = await self._look(self._keys(office), office)
        left_s = 0.0
        if view.tenure is not None and not view.is_over:
            left_s = await self._etcd.time_left_s(view.tenure.lease)
        return rules.holder_of(view.state, expires_in_s=left_s, vacant=self._is_vacant(view))

    # -- history ---------------------------------------------------------------------------------------------------
    @_bounded
    async def append(self, office: str, token: int, expected_index: int, records: Sequence[bytes]) -> int:
        rules.check_records(records)
        keys = self._keys(office)
        value = bytes([RECORD_FORMAT]) + msgspec.msgpack.encode(list(records))

        def step(view: _View) -> _Change:
            state = rules.appended(view.state, token, expected_index, len(records), office=office)
            return _Change(state, [put(keys.log(state.index), value)] if records else [])

        return (await self._change(office, "append", step)).index

    @_bounded
    async def read(self, office: str, after_index: int, limit: int) -> list[tuple[int, bytes]]:
        keys = self._keys(office)
        found: list[tuple[int, bytes]] = []
        last = after_index
        while True:
            page_keys = min(PAGE_KEYS, limit - len(found))
            if page_keys <= 0:
                return found
            answer = await self._etcd.read([get(keys.state), get(keys.log(last + 1), keys.log_end, limit=page_keys)])
            state = _state(answer.ranges[0], keys.where)[0]
            rules.refuse_compacted(state, last, office=office)
            for kv in answer.ranges[1]:
                found.extend(record for record in _unpacked(kv, office) if record[0] > last)
            if len(answer.ranges[1]) < page_keys or len(found) >= limit:
                return found[:limit]
            last = found[-1][0]

    @_bounded
    async def save_snapshot(self, office: str, token: int, index: int, blob: bytes) -> None:
        rules.check_snapshot(blob)
        keys = self._keys(office)
        rules.snapshotted((await self._look(keys, office)).state, token, index, office=office)
        chunks = [blob[at : at + CHUNK_BYTES] for at in range(0, len(blob), CHUNK_BYTES)] or [b""]
        name = self._ports.random.uuid().hex
        first, end = keys.chunks(name)
        for number, chunk in enumerate(chunks):
            await self._etcd.write([], [put(first + b"%06d" % number, chunk)])
        pointer = msgspec.json.encode(_Snapshot(RECORD_FORMAT, index, name, len(chunks)))
        everything, everything_end = keys.all_chunks

        def step(view: _View) -> _Change:
            operations = [
                put(keys.snapshot_at, pointer),
                delete(keys.log(0), keys.log(index + 1)),
                delete(everything, first),  # earlier ones, and what was left by savers that never got this far
                delete(end, everything_end),
            ]
            state = rules.snapshotted(view.state, token, index, office=office)
            return _Change(state, operations, [exists(first + b"%06d" % 0)])

        await self._change(office, "save_snapshot", step)

    @_bounded
    async def load_snapshot(self, office: str) -> tuple[int, bytes] | None:
        keys = self._keys(office)
        deadline = time.monotonic() + limits.STORE_CALL_S
        while time.monotonic() < deadline:
            pointers = (await self._etcd.read([get(keys.snapshot_at)])).ranges[0]
            if not pointers:
                return None
            pointer = msgspec.json.decode(pointers[0].value, type=_Snapshot)
            rules.refuse_newer(pointer.format, RECORD_FORMAT, where=keys.where)
            chunks = await self._chunks(keys, pointer)
            if len(chunks) == pointer.chunk_count:
                return pointer.index, b"".join(chunks)
            # a newer snapshot replaced it between the two looks
        raise StoreUnreachable(f"{keys.where}: the snapshot was replaced again and again while it was read")

    async def _chunks(self, keys: _Keys, pointer: _Snapshot) -> list[bytes]:
        first, end = keys.chunks(pointer.name)
        chunks: list[bytes] = []
        while len(chunks) < pointer.chunk_count:
            page = (await self._etcd.read([get(first + b"%06d" % len(chunks), end, limit=PAGE_KEYS)])).ranges[0]
            if not page:
                break
            chunks.extend(kv.value for kv in page)
        return chunks

    async def watch(
        self, office: str, after_index: int, timeout_s: float, *, known_token: int | None = None
    ) -> int:
        keys = self._keys(office)
        before = None if known_token is None else (known_token, False)
        ends_at = time.monotonic() + timeout_s
        while True:
            view = await self._look(keys, office)
            who = (view.state.token, self._is_vacant(view))
            before = before or who
            left_s = ends_at - time.monotonic()
            if view.state.index > after_index or who != before or left_s <= 0:
                return view.state.index
            await self._wait_for_change(keys, view, min(left_s, limits.STORE_CALL_S))

    async def _wait_for_change(self, keys: _Keys, view: _View, timeout_s: float) -> None:
        """Until etcd reports one, the holder's process is gone, or time is up."""
        changed = Wakers()
        event = asyncio.ensure_future(
            self._etcd.next_event(keys.state, keys.tenure + b"\0", after_revision=view.revision)
        )
        event.add_done_callback(lambda _: changed.wake())
        holder = None if self._is_vacant(view) else view.state.candidate
        try:
            await changed.wait(timeout_s, process=None if holder is None else holder.process)
            if event.done():
                event.result()
        finally:
            event.cancel()
            await asyncio.wait({event})

    # -- members ---------------------------------------------------------------------------------------------------
    @_bounded
    async def lease(self, member: str, incarnation: int, ttl_s: float, info: bytes) -> None:
        rules.check_name(member)
        key, counter = self._member_keys(member)
        value = _Member(STORE_FORMAT, incarnation, self._ports.processes.me(), bytes(info))
        counters, holders = (await self._etcd.read([get(counter), get(key)])).ranges
        stored, revision = (int(counters[0].value), counters[0].revision) if counters else (incarnation, 0)
        rules.refuse_stale_incarnation(member, given=incarnation, stored=stored)
        if holders:   # without its lease the key is not there; whoever writes it later writes the counter, too
            rules.refuse_living_other(
                member, _member(holders[0]).process, over=False, processes=self._ports.processes)
        known, lease, seconds = self._members.get(member, (None, 0, 0))
        if known == value and ttl_s > 0 and seconds == _seconds(ttl_s) and await self._etcd.keep_alive(lease):
            return
        lease = await self._etcd.grant_lease(_seconds(ttl_s)) if ttl_s > 0 else 0
        present = put(key, msgspec.msgpack.encode(value), lease) if ttl_s > 0 else delete(key)
        answer = await self._etcd.write(
            [unchanged(counter, revision)], [put(counter, str(incarnation).encode()), present]
        )
        if not answer.succeeded:
            raise StoreUnreachable(f"member {member}: another process leased it at the same time")
        self._members[member] = (value, lease, _seconds(ttl_s))

    @_bounded
    async def leases(self) -> list[MemberLease]:
        base = f"{self._prefix}/m/"
        found = (await self._etcd.read([get(base.encode(), f"{self._prefix}/m0".encode())])).ranges[0]
        living: list[MemberLease] = []
        for kv in found:
            value = _member(kv)
            if not self._ports.processes.is_gone(value.process):
                left_s, granted_s = await self._etcd.times_s(kv.lease)
                name = unquote(kv.key.decode().removeprefix(base))
                living.append(MemberLease(name, value.incarnation, left_s, max(0.0, granted_s - left_s), value.info))
        return sorted(living, key=lambda lease: lease.member)

    async def close(self) -> None:
        await self._etcd.close()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _keys(self, office: str) -> _Keys:
        return _Keys(self._prefix, office)

    def _member_keys(self, member: str) -> tuple[bytes, bytes]:
        name = quote(member, safe="")
        return f"{self._prefix}/m/{name}".encode(), f"{self._prefix}/i/{name}".encode()

    async def _look(self, keys: _Keys, office: str) -> _View:
        view = _view(await self._etcd.read([get(keys.state), get(keys.tenure)]), keys)
        self._views[office] = view
        return view

    async def _change(self, office: str, name: str, step: Callable[[_View], _Change]) -> OfficeState:
        """One atomic step of the office. What is refused on an old view is tried again on a fresh one."""
        keys = self._keys(office)
        view, fresh = self._views.get(office), False
        deadline = time.monotonic() + limits.STORE_CALL_S
        while time.monotonic() < deadline:
            if view is None:
                view, fresh = await self._look(keys, office), True
            try:
                change = step(view)
            except MillraceError:
                if fresh:
                    raise
                view = None
                continue
            before, view = view, await self._attempt(keys, office, name, view, change)
            if view is None:
                return change.state
            if view.state_revision == before.state_revision:
                raise IndexConflict(f"office {office}: another {name} was made at the same time")
            fresh = True
        raise StoreUnreachable(f"office {office}: changed by others all the time")

    async def _attempt(self, keys: _Keys, office: str, name: str, view: _View, change: _Change) -> _View | None:
        """None when done, else the view that was met instead."""
        self._views.pop(office, None)  # whatever happens in between: the next change looks again
        self._ports.buggify(f"store.{name}.begun")
        answer = await self._etcd.write(
            [unchanged(keys.state, view.state_revision), *change.compares],
            [put(keys.state, rules.encode_state(change.state)), *change.operations],
            [get(keys.state), get(keys.tenure)],
        )
        self._ports.buggify(f"store.{name}.after_commit")
        if not answer.succeeded:
            return _view(answer, keys)
        if change.keeps_tenure:
            # A tenure that ended meanwhile is still in this view: refused on it, a candidate looks again.
            self._views[office] = _View(change.state, answer.revision, view.tenure, answer.revision)
        return None

    def _next_holder(self, view: _View, candidate: Candidate, office: str, ttl_s: float) -> OfficeState:
        return rules.acquired(view.state, candidate, office=office, vacant=self._is_vacant(view), ttl_s=ttl_s)

    def _is_vacant(self, view: _View) -> bool:
        return rules.is_vacant(view.state, over=view.is_over, processes=self._ports.processes)

    async def _forget_lease(self, lease: int) -> None:
        """Kindness only: without a key it does nothing, and it ends by itself."""
        try:
            await self._etcd.revoke_lease(lease)
        except StoreUnreachable:
            pass


def _seconds(ttl_s: float) -> int:
    return max(1, math.ceil(ttl_s))


def _token_value(token: int) -> bytes:
    return str(token).encode()


def _state(found: list[KeyValue], where: str) -> tuple[OfficeState, int]:
    if not found:
        return NEVER_HELD, 0
    return rules.decode_state(found[0].value, where=where), found[0].revision


def _view(answer: Answer, keys: _Keys) -> _View:
    state, revision = _state(answer.ranges[0], keys.where)
    tenure = answer.ranges[1][0] if answer.ranges[1] else None
    return _View(state, revision, tenure, answer.revision)


def _member(kv: KeyValue) -> _Member:
    value = msgspec.msgpack.decode(kv.value, type=_Member)
    rules.refuse_newer(value.format, STORE_FORMAT, where=kv.key.decode())
    return value


def _unpacked(kv: KeyValue, office: str) -> list[tuple[int, bytes]]:
    last = int(kv.key.rpartition(b"/")[2], 16)
    rules.check_record_format(kv.value[0], office=office, index=last)
    records = msgspec.msgpack.decode(kv.value[1:], type=list[bytes])
    return list(enumerate(records, start=last - len(records) + 1))
