"""The metadata store: one contract (`contract`), two stores (`sqlite`, `etcd`)."""

from __future__ import annotations

from millrace.errors import ConfigError
from millrace.ops.ports import Ports
from millrace.store.contract import Candidate, Holder, MemberLease, Store

__all__ = ["Candidate", "Holder", "MemberLease", "Store", "open_store"]


def open_store(url: str, ports: Ports) -> Store:
    """The store that `url` names: "sqlite:/path/of/directory" or "etcd://host:port[,host:port]/prefix"."""
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest:
        from millrace.store.sqlite import SqliteStore

        return SqliteStore(rest, ports)
    if scheme == "etcd":
        from millrace.store.etcd import EtcdStore, parse_url  # gRPC is loaded only where etcd is used

        endpoints, prefix = parse_url(url)
        return EtcdStore(endpoints, prefix, ports)
    raise ConfigError(f"store: {url!r} is not a store: use sqlite:/directory or etcd://host:port/prefix")
