"""The Kafka listener: connections, dispatch, limits.

    frame ─▶ header ─▶ Produce, Fetch, FenceWriter: plain calls that answer now or leave a callback
                  └──▶ everything else: table-driven; plain calls, or a task where the controller must be asked

In: frames of clients. Out: answers in order. Promise: whatever a client sends, the others are not disturbed: what
cannot be read closes its own connection with one line in the log; slow, silent and too many peers are cut off [L25].
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import structlog

from millrace.errors import Malformed, UnsupportedVersion
from millrace.link.conn import FrameConn
from millrace.log.kafka import (
    admin,
    configs,
    delete_records,
    fence,
    fetch,
    floors,
    group_offsets,
    groups,
    metadata,
    offsets,
    positions,
    produce,
    proof,
)
from millrace.log.kafka.client import Client, Slot
from millrace.log.kafka.principal import refused_call
from millrace.log.kafka.shell import LIBRDKAFKA, PRINCIPAL, WHO, KafkaOptions, KafkaStats, Service, Shell
from millrace.log.kafka.transactions import is_librdkafka
from millrace.ops.naps import next_look
from millrace.wire.kafka import apis, hot
from millrace.wire.kafka.apis import Key
from millrace.wire.kafka.codec import APIS, Api, Fields, decode

log = structlog.get_logger(__name__)

SWEEP_S = 1.0

Hot = Callable[[Service, Client, hot.Header, memoryview], None]
Cold = Callable[[Service, int, Fields], Fields | Awaitable[Fields]]


def api_versions(service: Service, version: int, fields: Fields) -> Fields:
    return {
        "api_keys": [
            {"api_key": key, "min_version": offered.first, "max_version": offered.last}
            for key, offered in apis.ADVERTISED.items()
        ]
    }


HOT: dict[int, Hot] = {
    Key.PRODUCE: produce.handle,
    Key.FETCH: fetch.handle,
    Key.FENCE_WRITER: fence.handle,
    Key.PROVE: proof.handle,
}
COLD: dict[int, Cold] = {
    Key.API_VERSIONS: api_versions,
    Key.METADATA: metadata.metadata,
    Key.DESCRIBE_CLUSTER: metadata.describe_cluster,
    Key.LIST_OFFSETS: offsets.list_offsets,
    Key.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    Key.INIT_PRODUCER_ID: admin.init_producer_id,
    Key.CREATE_TOPICS: admin.create_topics,
    Key.DELETE_TOPICS: admin.delete_topics,
    Key.DELETE_RECORDS: delete_records.delete_records,
    Key.CREATE_PARTITIONS: admin.create_partitions,
    Key.DESCRIBE_CONFIGS: configs.describe_configs,
    Key.ALTER_CONFIGS: configs.alter_configs,
    Key.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    Key.FIND_COORDINATOR: groups.find_coordinator,
    Key.JOIN_GROUP: groups.join_group,
    Key.SYNC_GROUP: groups.sync_group,
    Key.HEARTBEAT: groups.heartbeat,
    Key.LEAVE_GROUP: groups.leave_group,
    Key.DESCRIBE_GROUPS: groups.describe_groups,
    Key.LIST_GROUPS: groups.list_groups,
    Key.DELETE_GROUPS: groups.delete_groups,
    Key.OFFSET_COMMIT: group_offsets.offset_commit,
    Key.OFFSET_FETCH: group_offsets.offset_fetch,
    Key.OFFSET_DELETE: group_offsets.offset_delete,
    Key.MOVE_POSITION: positions.move_position,
    Key.FLOORS: floors.floors,
}


class KafkaServer:
    def __init__(self, shell: Shell, options: KafkaOptions | None = None) -> None:
        self._options = options or KafkaOptions()
        self._service = Service(shell, self._options, self._queued_bytes)
        self._server: asyncio.AbstractServer | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.clients: dict[FrameConn, Client] = {}

    @property
    def stats(self) -> KafkaStats:
        return self._service.stats

    @property
    def port(self) -> int:
        """The one really bound: for listeners opened on port 0."""
        assert isinstance(self._server, asyncio.Server)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def listen(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port)
        self._sweep()

    async def close(self) -> None:
        self._closing = True
        if self._sweeper:
            self._sweeper.cancel()
        if self._server:
            self._server.close()
        for conn in list(self.clients):
            conn.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- connections -----------------------------------------------------------------------------------------------

    def _accept(self) -> FrameConn:
        return FrameConn(
            self._frame, on_open=self._opened, on_closed=self._closed, frame_bytes_max=self._options.frame_bytes_max
        )

    def _opened(self, conn: FrameConn) -> None:
        if self._closing:                               # accepted just before: nobody would ever end it
            conn.abort()
            return
        if len(self.clients) >= self._options.connections_max:
            if not self.stats.connections_refused:
                log.warning("connections are refused: too many", limit=self._options.connections_max)
            self.stats.connections_refused += 1
            conn.abort()
            return
        self.stats.connections_opened += 1
        self.clients[conn] = conn.context = Client(conn, self._options.in_flight_max)

    def _closed(self, conn: FrameConn, _: Exception | None) -> None:
        client = self.clients.pop(conn, None)
        if client is not None:
            client.gone()

    def _queued_bytes(self) -> int:
        return sum(conn.queued_bytes for conn in self.clients)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for conn, client in list(self.clients.items()):
            why = conn.overdue(now)
            if why and not (why == "idle" and client.in_flight):
                log.info("client cut off", peer=conn.peername, why=why)
                self.stats.connections_cut += 1
                conn.abort()
        self._sweeper = loop.call_at(next_look(loop.time(), SWEEP_S), self._sweep)

    # -- requests --------------------------------------------------------------------------------------------------

    def _frame(self, conn: FrameConn, frame: memoryview) -> None:
        """Raises what closes the connection; FrameConn logs it."""
        client: Client = conn.context
        if client.closing:
            return
        header = hot.parse_header(frame)
        key = header.key
        api = APIS.get(key)
        if api is None or header.version not in api.versions:
            self._unsupported(client, header)
            return
        self.stats.requests[key] = self.stats.requests.get(key, 0) + 1
        if key in apis.PRIVATE and not client.principal.is_own:
            self._private(client, api, header, frame)
            return
        hot_handler = HOT.get(key)
        if hot_handler is not None:
            hot_handler(self._service, client, header, frame)
            return
        fields = decode(api, header.version, frame[header.body :], exact=False)
        fields[PRINCIPAL] = client.principal
        if key == Key.API_VERSIONS:
            client.is_librdkafka = is_librdkafka(fields.get("client_software_name", ""),
                                                 fields.get("client_software_version", ""))
        fields[LIBRDKAFKA] = client.is_librdkafka
        if key == Key.JOIN_GROUP:
            fields[WHO] = (header.client_id.decode(errors="replace"), conn.peername)
        self._cold(client, api, header, COLD[key](self._service, header.version, fields))

    def _private(self, client: Client, api: Api, header: hot.Header, frame: memoryview) -> None:
        """Of a connection that has not proved the secret: it may do so; nothing else is even decoded."""
        if api.key == Key.PROVE:
            proof.handle(self._service, client, header, frame)
            return
        self.stats.private_refused += 1
        error = refused_call(api.name)
        fields = {"error_code": error.kafka_code, "error_message": str(error)}
        client.slot().answer([apis.encode_response(api, header.version, header.correlation, fields)])

    def _unsupported(self, client: Client, header: hot.Header) -> None:
        """Every client may ask ApiVersions in any version: it is told ours in the oldest form and asks again."""
        if header.key != Key.API_VERSIONS:
            raise Malformed(f"call {header.key} version {header.version} is not served; ask for ApiVersions")
        fields = {"error_code": UnsupportedVersion.kafka_code, **api_versions(self._service, 0, {})}
        client.slot().answer([apis.encode_response(APIS[Key.API_VERSIONS], 0, header.correlation, fields)])

    def _cold(self, client: Client, api: Api, header: hot.Header, result: Fields | Awaitable[Fields]) -> None:
        slot = client.slot()
        if not inspect.isawaitable(result):
            slot.answer([apis.encode_response(api, header.version, header.correlation, result)])
            return
        task = asyncio.get_running_loop().create_task(self._finish(client, slot, api, header, result))
        self._tasks[task] = None
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def _finish(
        self, client: Client, slot: Slot, api: Api, header: hot.Header, result: Awaitable[Fields]
    ) -> None:
        try:
            answer = apis.encode_response(api, header.version, header.correlation, await result)
        except Exception:
            self.stats.handler_failures += 1
            log.exception("connection closed: a handler failed", api=api.name, peer=client.conn.peername)
            client.conn.abort()
            return
        slot.answer([answer])
