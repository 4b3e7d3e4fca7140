"""The few etcd v3 calls the store makes, each bounded in time, over the endpoints in turn.

In: compares, operations, lease ids. Out: etcd's answers; every failure is StoreUnreachable, which leaves open whether a
write happened. Reads go on to the next endpoint by themselves; writes do not, because a repeated compare would meet its
own first attempt. aetcd gives the generated messages and stubs; its client is not used, as it knows one endpoint only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from aetcd import rpc

from millrace import limits
from millrace.errors import StoreUnreachable

RPC_S = 1.5  # one attempt; below a tenure, so that a dead endpoint costs a holder one renewal and not the office
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(RPC_S * 1000)),  # despite its name: how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),  # bounded by what we store: pages of at most 32 values of 1 MiB
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


class KeyValue(NamedTuple):
    key: bytes
    value: bytes
    revision: int
    lease: int


class Answer(NamedTuple):
    """Of a transaction: which branch ran, and the keys of each range in it."""

    succeeded: bool
    revision: int
    ranges: list[list[KeyValue]]


class _Endpoint:
    def __init__(self, address: str) -> None:
        self.channel = rpc.insecure_channel(address, options=_OPTIONS)
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)


class EtcdClient:
    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._endpoints: dict[str, _Endpoint] = {}
        self._current = 0

    async def close(self) -> None:
        endpoints, self._endpoints = list(self._endpoints.values()), {}
        for endpoint in endpoints:
            await endpoint.channel.close()

    # -- keys ------------------------------------------------------------------------------------------------------
    async def write(self, compares: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = ()) -> Answer:
        request = rpc.TxnRequest(compare=compares, success=success, failure=failure)
        return _answer(await self._once(lambda endpoint: endpoint.kv.Txn(request, timeout=RPC_S)))

    async def read(self, gets: Sequence[Any]) -> Answer:
        """All ranges at one revision, not older than this call."""
        request = rpc.TxnRequest(success=gets)
        return _answer(await self._retried(lambda endpoint: endpoint.kv.Txn(request, timeout=RPC_S)))

    # -- leases ----------------------------------------------------------------------------------------------------
    async def grant_lease(self, ttl_s: int) -> int:
        request = rpc.LeaseGrantRequest(TTL=ttl_s)
        return int((await self._once(lambda endpoint: endpoint.lease.LeaseGrant(request, timeout=RPC_S))).ID)

    async def revoke_lease(self, lease: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease)
        await self._once(lambda endpoint: endpoint.lease.LeaseRevoke(request, timeout=RPC_S))

    async def keep_alive(self, lease: int) -> bool:
        """False when the lease is over."""

        async def once(endpoint: _Endpoint) -> bool:
            stream = endpoint.lease.LeaseKeepAlive([rpc.LeaseKeepAliveRequest(ID=lease)], timeout=RPC_S)
            try:
                async for reply in stream:
                    return bool(reply.TTL > 0)
            finally:
                stream.cancel()
            raise StoreUnreachable("etcd ended a keep-alive without an answer")

        return bool(await self._retried(once))

    async def time_left_s(self, lease: int) -> float:
        return (await self.times_s(lease))[0]

    async def times_s(self, lease: int) -> tuple[float, float]:
        """What is left, and what is given at each keep-alive."""
        request = rpc.LeaseTimeToLiveRequest(ID=lease)
        reply = await self._retried(lambda endpoint: endpoint.lease.LeaseTimeToLive(request, timeout=RPC_S))
        # etcd rounds down; what it says is over in 0 s is still there.
        left_s = float(min(reply.TTL + 1, reply.grantedTTL)) if reply.TTL >= 0 else 0.0
        return left_s, float(reply.grantedTTL)

    # -- watch -----------------------------------------------------------------------------------------------------
    async def next_event(self, key: bytes, range_end: bytes, *, after_revision: int) -> None:
        """Returns when a key in the range changed after `after_revision`; cancel it to stop waiting."""
        create = rpc.WatchCreateRequest(key=key, range_end=range_end, start_revision=after_revision + 1)
        done = asyncio.Event()

        async def requests() -> AsyncIterator[Any]:
            yield rpc.WatchRequest(create_request=create)
            await done.wait()  # a finished request stream would end the watch

        async def once(endpoint: _Endpoint) -> None:
            stream = endpoint.watch.Watch(requests())
            try:
                async for response in stream:
                    if response.events or response.canceled:  # canceled: compacted below, so something did change
                        return
            finally:
                done.set()
                stream.cancel()
            raise StoreUnreachable("etcd ended a watch")

        await self._once(once)

    # -- inside ----------------------------------------------------------------------------------------------------
    async def _once(self, call: Callable[[_Endpoint], Awaitable[Any]]) -> Any:
        address = self._addresses[self._current]
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            endpoint = self._endpoints[address] = _Endpoint(address)
        try:
            return await call(endpoint)
        except rpc.AioRpcError as error:
            self._current = (self._current + 1) % len(self._addresses)
            raise StoreUnreachable(f"etcd at {address}: {error.code().name.lower()}: {error.details()}") from error

    async def _retried(self, call: Callable[[_Endpoint], Awaitable[Any]]) -> Any:
        deadline = time.monotonic() + limits.STORE_CALL_S - RPC_S
        for _ in range(len(self._addresses) - 1):
            try:
                return await self._once(call)
            except StoreUnreachable:
                if time.monotonic() >= deadline:
                    raise
        return await self._once(call)


# -- operations of a transaction -----------------------------------------------------------------------------------
def unchanged(key: bytes, revision: int) -> Any:
    """`key` was last written at `revision`; 0: it does not exist."""
    return rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision)


def exists(key: bytes) -> Any:
    return rpc.Compare(key=key, target=rpc.Compare.VERSION, result=rpc.Compare.GREATER, version=0)


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def get(key: bytes, range_end: bytes = b"", *, limit: int = 0) -> Any:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, range_end=range_end, limit=limit))


def delete(key: bytes, range_end: bytes = b"") -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key, range_end=range_end))


def _answer(response: Any) -> Answer:
    ranges = [
        [KeyValue(kv.key, kv.value, kv.mod_revision, kv.lease) for kv in part.response_range.kvs]
        for part in response.responses
        if part.HasField("response_range")
    ]
    return Answer(response.succeeded, response.header.revision, ranges)
