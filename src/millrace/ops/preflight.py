"""What can be known to be wrong before a process starts, found without writing anything.

In: a checked configuration. Out: nothing, or one ConfigError that names the key and the remedy: a port that is taken, a
data directory of another broker or cluster, a full disk.
"""

from __future__ import annotations

import errno
import os
import socket

import msgspec

from millrace.errors import ConfigError, ForeignDirectory
from millrace.ops.config import Config

BROKERS_PER_MACHINE_MAX = 50


def check_broker(config: Config, broker_id: int) -> None:
    if config.cluster.id is None:
        raise ConfigError("cluster.id: missing; give every broker the same UUID (`millrace up` makes one)")
    broker = config.broker
    for key, port in (("kafka_port", broker.kafka_port), ("link_port", config.link_port),
                      ("http_port", broker.http_port)):
        check_port(f"broker.{key}", broker.host, port)
    path = config.data_dir(broker_id)
    check_directory(path, cluster_id=str(config.cluster.id), broker_id=broker_id)
    check_disk(path, broker.disk_free_min_bytes)


def check_capture(config: Config) -> None:
    if config.cluster.id is None:
        raise ConfigError("cluster.id: missing; give every process the same UUID (`millrace up` makes one)")
    check_port("capture.http_port", config.capture.host, config.capture.http_port)
    check_port("capture.link_port", config.capture.host, config.capture_link_port)


def check_port(key: str, host: str, port: int) -> None:
    """Binds and lets go: whoever takes the port in between is noticed by the listener itself."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        section = key.partition(".")[0]
        raise ConfigError(f"{section}.host: {host}: {error.strerror}; use an address of this machine") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise port_error(key, host, port, error) from None


def is_free(host: str, port: int) -> bool:
    try:
        check_port("", host, port)
    except ConfigError:
        return False
    return True


def port_error(key: str, host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{key}: {host}:{port} is taken by another process; stop it or choose another port")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{key.partition('.')[0]}.host: {host} is no address of this machine; choose one that is")
    return ConfigError(f"{key}: cannot listen on {host}:{port}: {error.strerror}; choose another port")


def check_directory(path: str, *, cluster_id: str, broker_id: int) -> None:
    """The directory says whose it is in meta.json; one without it is new, or is judged when it is opened."""
    try:
        with open(os.path.join(path, "meta.json"), "rb") as file:
            meta = msgspec.json.decode(file.read())
    except (FileNotFoundError, NotADirectoryError):
        if os.path.exists(path) and not os.path.isdir(path):
            raise ConfigError(f"broker.data_dir: {path} is not a directory; choose another") from None
        return
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"broker.data_dir: {path}/meta.json cannot be read: {error}; choose another") from None
    if str(meta.get("cluster_id")) != cluster_id:
        raise ForeignDirectory(f"broker.data_dir: {path} belongs to cluster {meta.get('cluster_id')}, not to "
                               f"{cluster_id}; choose another directory or correct cluster.id")
    if meta.get("broker_id") != broker_id:
        raise ForeignDirectory(f"broker.data_dir: {path} belongs to broker {meta.get('broker_id')}, not to "
                               f"{broker_id}; choose another directory or correct --id")


def check_disk(path: str, free_min_bytes: int) -> None:
    existing = os.path.abspath(path)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    stat = os.statvfs(existing)
    free = stat.f_bavail * stat.f_frsize
    if free < free_min_bytes:
        raise ConfigError(f"broker.data_dir: {path} has {free:,} bytes free, below broker.disk_free_min_bytes "
                          f"{free_min_bytes:,}; free space or choose another disk")
