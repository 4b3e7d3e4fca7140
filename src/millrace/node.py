"""The composition root: processes out of rooms.

    ports ─▶ store ─▶ Broker (log directory, links, controller candidate) ─▶ KafkaServer
    ports ─▶ store ─▶ Capture (lease, links, changefeeds, coordinator candidate, readers of sources)
                         └──▶ HTTP, up first: a process that still starts answers /livez and says why it is not ready

In: a checked configuration. Out: a running process that ends on SIGTERM or SIGINT, cleanly and in bounded time.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millrace.api.app import HttpServer, build
from millrace.api.guard import Door
from millrace.core import retention
from millrace.core.admin import Defaults
from millrace.core.retention import Budget, RetentionConfig
from millrace.errors import ConfigError, DiskFull, MillraceError
from millrace.log.broker import Broker
from millrace.log.config import BrokerConfig
from millrace.log.controller.config import ControllerConfig
from millrace.log.kafka.server import KafkaServer
from millrace.log.kafka.shell import KafkaOptions
from millrace.ops.background import Background
from millrace.ops.cluster_secret import HTTP, KAFKA, LINK, PEER, ClusterSecret
from millrace.ops.config import Config
from millrace.ops.garbage import Garbage
from millrace.ops.logging import get_logger
from millrace.ops.preflight import port_error
from millrace.ops.real import boot_of, read_boot_id, real_ports
from millrace.store import Candidate, Store, open_store, ownership

if TYPE_CHECKING:
    from millrace.changefeed.capture import CaptureSettings
    from millrace.changefeed.changefeeds import ChangefeedSettings

log = get_logger(__name__)


class _End:
    """The end of this process: a signal asks for it, or something that it needs has failed."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.error: MillraceError | None = None      # the first failure

    def by_signal(self) -> None:
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self.event.set)

    def fail(self, error: MillraceError) -> None:
        self.error = self.error or error
        self.event.set()


async def serve_broker(config: Config, broker_id: int, secret: ClusterSecret) -> None:
    """Runs one broker until it is told to stop or cannot go on; raises what ended it."""
    end = _End()
    end.by_signal()
    ports = real_ports()
    store = open_store(config.store_url, ports)
    settings = replace(broker_config(config, broker_id), http_key=secret.key(PEER))
    broker = Broker(settings, ports, store, listener=lambda shell: KafkaServer(shell, kafka_options(config, secret)),
                    controller=controller_config(config), link_key=secret.proof_key(LINK),
                    fatal=end.fail)
    assert isinstance(broker.listener, KafkaServer)
    door = door_of(config, secret, config.broker.http_port, config.broker.host, config.advertised_host)
    http = HttpServer(build(broker, broker.listener, door), ended=end.fail)
    garbage = Garbage()
    garbage.start()
    try:
        await _http(http, "broker.http_port", config.broker.host, config.broker.http_port)
        if await _started(_owned(config, store, broker_id, broker.start), config, end.event):
            await end.event.wait()
    finally:
        await broker.stop()
        await http.close()
        await store.close()
        garbage.close()
    if (failed := broker.failed or end.error) is not None:
        raise failed


def door_of(config: Config, secret: ClusterSecret, port: int, *names: str) -> Door:
    """`names`: where HTTP is bound, and as what it is advertised."""
    return Door(token=secret.token(HTTP), peer_key=secret.key(PEER), port=port, names=names, more=config.http.hosts,
                open_metrics=config.http.open_metrics)


async def _begun(start: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """False when the stop came first: a broker may wait long for a controller, a capture for a lease."""
    starting = asyncio.create_task(start, name="start")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    starting.result()
    return not stop.is_set()


async def _owned(config: Config, store: Store, member: int, start: Callable[[], Awaitable[None]]) -> None:
    """First the store says whose it is: a process of another cluster stands for no office and registers nowhere."""
    assert config.cluster.id is not None, "preflight was not made"
    me = Candidate(member, "", real_ports().processes.me())
    await ownership.claim(store, config.cluster.id, me, url=config.store_url)
    await start()


async def _started(start: Coroutine[Any, Any, None], config: Config, stop: asyncio.Event) -> bool:
    try:
        return await _begun(start, stop)
    except OSError as error:
        raise _start_error(config, error) from error
    except DiskFull as error:
        raise ConfigError(f"broker.data_dir: {error}; free space or choose another disk") from error


def _start_error(config: Config, error: OSError) -> Exception:
    """What the operator can put right is said as configuration; the rest stays what it is."""
    broker = config.broker
    if error.errno == errno.EADDRINUSE:
        port = broker.kafka_port if str(broker.kafka_port) in str(error) else config.link_port
        key = "broker.kafka_port" if port == broker.kafka_port else "broker.link_port"
        return port_error(key, broker.host, port, error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
        return ConfigError(f"broker.data_dir: {error.strerror}; free space, correct the rights or choose another")
    return error


async def _http(http: HttpServer, key: str, host: str, port: int) -> None:
    try:
        await http.start(host, port)
    except OSError as error:
        raise port_error(key, host, port, error) from None


async def serve_capture(config: Config, capture_id: int, secret: ClusterSecret) -> None:
    """Runs one capture until it is told to stop or cannot go on; raises what ended it."""
    from millrace.api import capture_app  # the database driver and Arrow: a broker does without them
    from millrace.changefeed.capture import Capture

    end = _End()
    end.by_signal()
    ports = real_ports()
    store = open_store(config.store_url, ports)
    settings = replace(capture_settings(config, capture_id, secret), http_key=secret.key(PEER))
    capture = Capture(settings, ports, store, fatal=end.fail)
    door = door_of(config, secret, config.capture.http_port, config.capture.host, config.capture_host)
    app = capture_app.build(capture, door)
    http = HttpServer(app, ended=end.fail)
    background = Background()
    background.restart("health", app.state.health.run)
    garbage = Garbage()
    garbage.start()
    try:
        await _http(http, "capture.http_port", config.capture.host, config.capture.http_port)
        if await _capture_started(_owned(config, store, capture_id, capture.start), config, end.event):
            await end.event.wait()
    finally:
        await background.stop()
        await capture.stop()
        await http.close()
        await store.close()
        garbage.close()
    if (failed := capture.failed or end.error) is not None:
        raise failed


async def _capture_started(start: Coroutine[Any, Any, None], config: Config, stop: asyncio.Event) -> bool:
    try:
        return await _begun(start, stop)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise port_error("capture.link_port", config.capture.host, config.capture_link_port, error) from error


def capture_settings(config: Config, capture_id: int, secret: ClusterSecret) -> CaptureSettings:
    from millrace.changefeed.capture import CaptureSettings

    capture = config.capture
    return CaptureSettings(
        id=capture_id,
        address=f"{config.capture_host}:{capture.http_port}",
        bootstrap=config.bootstrap,
        log_key=secret.proof_key(KAFKA),
        spool_dir=os.path.join(config.cluster.dir, f"capture-{capture_id}"),
        session_s=capture.session_s,
        tenure_s=capture.tenure_s,
        clock_drift_max=config.broker.clock_drift_max,
        copy_processes=capture.copy_processes or max(1, (os.cpu_count() or 1) // 2),
        copy_on_spark=capture.copy_on_spark,
        floor_move_s=capture.floor_move_s,
        places=config.secret_places,
        link=f"{config.capture_host}:{config.capture_link_port}",
        changefeeds=changefeed_settings(config, capture_id, secret),
    )


def changefeed_settings(config: Config, capture_id: int, secret: ClusterSecret) -> ChangefeedSettings:
    from millrace.changefeed.changefeeds import ChangefeedSettings
    from millrace.pipeline.driver import place_of

    assert config.cluster.id is not None, "preflight was not made"
    return ChangefeedSettings(
        cluster_id=config.cluster.id,
        link_key=secret.proof_key(LINK),
        log_key=secret.proof_key(KAFKA),
        bootstrap=config.bootstrap,
        session_s=config.capture.session_s,
        link_host=config.capture.host,
        link_port=config.capture_link_port,
        spark=lambda: place_of(config, os.path.join(config.cluster.dir, f"capture-{capture_id}", "spark")),
        spark_cores=config.spark.cores or os.cpu_count() or 1,
        floor_move_s=config.capture.floor_move_s,
        places=config.secret_places,
    )


def broker_config(config: Config, broker_id: int) -> BrokerConfig:
    broker = config.broker
    assert config.cluster.id is not None, "preflight was not made"
    return BrokerConfig(
        broker_id=broker_id,
        cluster_id=config.cluster.id,
        data_dir=config.data_dir(broker_id),
        host=config.advertised_host,
        bind_host=broker.host,
        kafka_port=broker.kafka_port,
        link_port=config.link_port,
        http_port=broker.http_port,
        rack=broker.rack,
        host_id=boot_of(read_boot_id()),
        flush=broker.flush,
        heartbeat_s=broker.heartbeat_s,
        lease_s=broker.lease_s,
        session_s=broker.session_s,
        tenure_s=broker.tenure_s,
        clock_drift_max=broker.clock_drift_max,
        replica_lag_s=broker.replica_lag_s,
        disk_used_max=broker.disk_used_max,
        log_file_bytes=broker.log_file_bytes,
        retention=retention_config(config),
    )


def retention_config(config: Config) -> RetentionConfig:
    broker = config.broker
    return RetentionConfig(
        defaults=retention.Defaults(broker.retention_ms, broker.retention_bytes),
        check_s=broker.retention_check_s,
        floor_share=broker.floor_disk_share,
        floor_age_ms=_ms(broker.floor_age_s),
        budgets={
            kind: Budget(int(held_bytes), _ms(int(age_s)))
            for kind, held_bytes, age_s in (text.split(":") for text in broker.floor_budgets)
        },
    )


def _ms(seconds: int) -> int:
    return seconds * 1000 if seconds >= 0 else retention.NO_LIMIT


def kafka_options(config: Config, secret: ClusterSecret) -> KafkaOptions:
    broker = config.broker
    return KafkaOptions(key=secret.proof_key(KAFKA),
                        auto_create_topics=broker.auto_create_topics, connections_max=broker.connections_max)


def controller_config(config: Config) -> ControllerConfig:
    broker = config.broker
    return ControllerConfig(
        lease_s=broker.lease_s, session_s=broker.session_s, tenure_s=broker.tenure_s, renew_s=broker.tenure_s / 4,
        clock_drift_max=broker.clock_drift_max, leader_balance_s=broker.leader_balance_s,
        defaults=Defaults(partitions=broker.default_partitions, placement=config.cluster.placement),
    )

