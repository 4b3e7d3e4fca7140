"""Configuration: one strict YAML file, overridden by environment variables.

In: the text of `millrace.yaml` and variables named `MILLRACE_SECTION__KEY`. Out: a frozen `Config`, fully checked.
Promise: an unknown key, a wrong type or a value that breaks a rule is refused with ONE line that names the key and the
remedy, before anything is written. Every key carries its description here; docs/configuration.md is made from it.
"""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from millrace import limits
from millrace.core.lease import check_lease_times
from millrace.errors import ConfigError
from millrace.ops.secrets import Places

ENV_PREFIX = "MILLRACE_"
ENV_SEPARATOR = "__"
LINK_PORT_OFFSET = 100
CAPTURE_LINK_PORT_OFFSET = 300         # behind the HTTP ports of brokers and Spark's, as `millrace up` counts them

Port = Annotated[int, Meta(ge=1, le=65535)]


FloorBudgetText = Annotated[str, Meta(pattern=r"^[a-z]+:(-1|[0-9]{1,18}):(-1|[0-9]{1,15})$")]


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Annotated[UUID | None, Meta(description=(
        "Identity of the cluster, a UUID. `millrace up` makes one; brokers of another cluster are refused by "
        "links and directories."
    ))] = None
    dir: Annotated[str, Meta(min_length=1, description=(
        "Directory of this machine's part of the cluster; other directories default to places inside it. "
        "Relative paths count from the directory of the configuration file."
    ))] = ".millrace"
    secret_file: Annotated[str, Meta(description=(
        "File of mode 0600 with the secret that all processes of the cluster share; every port asks for it. `millrace "
        "up` makes it, other machines get a copy. Empty: `<cluster.dir>/secret`."
    ))] = ""
    placement: Annotated[Literal["round-robin", "least-loaded", "rack-aware"], Meta(description=(
        "How replicas of a new topic are spread over brokers when the topic does not say. Replicas of a partition are "
        "always on different brokers."
    ))] = "round-robin"


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(description=(
        "Where the controller's metadata lives: `sqlite:/path` (brokers of one machine) or "
        "`etcd://host:port/prefix` (several machines). Empty: SQLite in `<cluster.dir>/store`."
    ))] = ""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: Annotated[str, Meta(min_length=1, description="Address that all three listeners bind to.")] = "127.0.0.1"
    advertised_host: Annotated[str, Meta(description=(
        "Host name given to clients and to the other brokers. Empty: `broker.host`."
    ))] = ""
    kafka_port: Annotated[Port, Meta(description="Port of the Kafka protocol.")] = 9092
    link_port: Annotated[int, Meta(ge=0, le=65535, description=(
        "Port of the links between brokers. 0: `kafka_port` + 100."
    ))] = 0
    http_port: Annotated[Port, Meta(description="Port of HTTP: `/metrics`, `/livez`, `/readyz`, `/api/v2`.")] = 8400
    rack: Annotated[str, Meta(description=(
        "Rack or zone; replicas of a partition are spread over racks by the `rack-aware` policy."
    ))] = ""
    data_dir: Annotated[str, Meta(description=(
        "Directory of this broker's log files. Empty: `<cluster.dir>/broker-<id>`."
    ))] = ""
    flush: Annotated[Literal["group", "os"], Meta(description=(
        "`group`: an acknowledged write survives a power cut, by one disk sync for many writes. `os`: it survives"
        " a process crash; a power cut of all replicas may lose the last seconds."
    ))] = "group"
    auto_create_topics: Annotated[bool, Meta(description=(
        "Create a topic when a client asks for one that does not exist."
    ))] = True
    default_partitions: Annotated[int, Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX, description=(
        "Partitions of a topic created without a number."
    ))] = 1
    heartbeat_s: Annotated[float, Meta(gt=0, description=(
        "Time between heartbeats to the controller; at most a quarter of `lease_s`."
    ))] = limits.HEARTBEAT_S
    lease_s: Annotated[float, Meta(gt=0, description=(
        "A leader without an answered heartbeat for this long refuses writes. Must be below `session_s` x "
        "(1-r)/(1+r), r being `clock_drift_max`."
    ))] = limits.LEASE_S
    session_s: Annotated[float, Meta(gt=0, description=(
        "A broker silent for this long is fenced and its leaderships move."
    ))] = limits.SESSION_S
    tenure_s: Annotated[float, Meta(gt=0, description=(
        "The controller's office changes hands when it was not renewed for this long. Must be below `lease_s`, so"
        " that a change of controller stops no write."
    ))] = limits.TENURE_S
    clock_drift_max: Annotated[float, Meta(ge=0, lt=0.5, description=(
        "How far the clocks of two machines may drift apart, as a rate."
    ))] = limits.CLOCK_DRIFT_MAX
    replica_lag_s: Annotated[float, Meta(gt=0, description=(
        "A follower that has not caught up for this long leaves the in-sync replicas."
    ))] = limits.REPLICA_LAG_S
    leader_balance_s: Annotated[float, Meta(ge=0, description=(
        "A leadership returns to the partition's preferred broker, the first of its replicas, when that broker has been"
        " in sync and nothing about the partition has changed for this long. 0: never."
    ))] = limits.LEADER_BALANCE_S
    disk_used_max: Annotated[float, Meta(gt=0, le=1, description=(
        "Share of the disk above which leaders go to brokers with room, and produce is refused, retriably, where none "
        "has."
    ))] = limits.DISK_USED_MAX
    disk_free_min_bytes: Annotated[int, Meta(ge=0, description=(
        "A broker does not start with less free disk than this."
    ))] = 64 * limits.MIB
    log_file_bytes: Annotated[int, Meta(ge=limits.MIB, le=limits.GIB, description=(
        "Size at which a log file is closed and the next one begun."
    ))] = limits.LOG_FILE_BYTES
    retention_ms: Annotated[int, Meta(ge=-1, description=(
        "Log files whose newest record is older are removed, in topics that do not set `retention.ms`. -1: never by"
        " age. Topics of millrace's own are kept down to their floors instead."
    ))] = limits.RETENTION_MS
    retention_bytes: Annotated[int, Meta(ge=-1, description=(
        "Size of a partition above which its oldest log files are removed, in topics that do not set"
        " `retention.bytes`. -1: never by size."
    ))] = -1
    retention_check_s: Annotated[float, Meta(gt=0, description=(
        "Time between two looks for log files that may be removed."
    ))] = limits.RETENTION_CHECK_S
    floor_disk_share: Annotated[float, Meta(gt=0, le=1, description=(
        "Share of a broker's disk that one holder (a changefeed, a source, a copy) may keep from being removed. A"
        " holder beyond it is released, and needs a copy."
    ))] = limits.FLOOR_DISK_SHARE_MAX
    floor_age_s: Annotated[int, Meta(ge=-1, description=(
        "Time for which a holder may keep records from being removed. -1: any."
    ))] = -1
    floor_budgets: Annotated[tuple[FloorBudgetText, ...], Meta(description=(
        "Budgets of holders by their kind, instead of the two above, as `kind:bytes:seconds` with -1 for any: kinds are"
        " `changefeed`, `source`, `copy`. As an environment variable: separated by commas."
    ))] = ()
    connections_max: Annotated[int, Meta(ge=1, description=(
        "Client connections; further ones are closed at once."
    ))] = limits.CONNECTIONS_MAX


class CaptureConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: Annotated[str, Meta(min_length=1, description=(
        "Address that HTTP and links of a capture bind to."
    ))] = "127.0.0.1"
    advertised_host: Annotated[str, Meta(description=(
        "Host name under which the other captures reach this one. Empty: `capture.host`."
    ))] = ""
    http_port: Annotated[Port, Meta(description=(
        "Port of a capture's HTTP: `/metrics`, `/livez`, `/readyz`, `/api/v2` with sources."
    ))] = 8300
    link_port: Annotated[int, Meta(ge=0, le=65535, description=(
        "Port of the links between captures, over which changefeeds are placed. 0: `http_port` + 300."
    ))] = 0
    bootstrap: Annotated[tuple[str, ...], Meta(description=(
        "Brokers to start from, as host:port; the others are learned from them. Empty: the broker of this file. As an "
        "environment variable: separated by commas."
    ))] = ()
    tenure_s: Annotated[float, Meta(gt=0, description=(
        "The coordinator's office changes hands when it was not renewed for this long."
    ))] = limits.TENURE_S
    session_s: Annotated[float, Meta(gt=0, description=(
        "A capture that has not renewed its lease for this long counts as gone."
    ))] = limits.SESSION_S
    copy_processes: Annotated[int, Meta(ge=0, le=64, description=(
        "Processes that copy tables at the same time, per source. 0: one for every two cores, so that brokers, or a "
        "server on the same machine, keep pace. With `copy_on_spark` they are tasks of Spark, as many as find a place."
    ))] = 0
    copy_on_spark: Annotated[bool, Meta(description=(
        "Copy tables by tasks of Spark, on at most half of `spark.cores`, where a Spark is named and its workers reach "
        "the database. While it is not there, and with `false`: by processes on the capture's machine."
    ))] = True
    secret_dirs: Annotated[tuple[str, ...], Meta(description=(
        "Directories in which `${file:/path}` of a source's URL may lead; links are followed first. Elsewhere nothing "
        "is read. Empty: `<cluster.dir>/secrets`. As an environment variable: separated by commas."
    ))] = ()
    secret_env: Annotated[tuple[str, ...], Meta(description=(
        "Variables that `${env:NAME}` of a source's URL may name; a `*` at the end stands for any rest. As an "
        "environment variable: separated by commas."
    ))] = ("MILLRACE_SECRET_*",)
    floor_move_s: Annotated[float, Meta(gt=0, description=(
        "How often sources and changefeeds tell the log what they still need of it. More often: the log is cut sooner, "
        "and each time is a record to every broker."
    ))] = limits.FLOOR_MOVE_S


class SparkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    remote: Annotated[str, Meta(description=(
        "A Spark Connect server that is there already, as `sc://host:port`: row work runs on it. Empty: the one that "
        "`millrace up` starts, unless `spark.master` is given."
    ))] = ""
    master: Annotated[str, Meta(description=(
        "A master for a Spark driver inside each capture, instead of a Connect server: `local[*]`, "
        "`spark://host:port`, `k8s://https://host:port`."
    ))] = ""
    port: Annotated[int, Meta(ge=0, le=65535, description=(
        "Port of the Spark Connect server that `millrace up` starts. 0: a free one."
    ))] = 0
    cores: Annotated[int, Meta(ge=0, le=1024, description=(
        "Tasks that may run at the same time; a round of row work is packed into at most so many. 0: as many as this "
        "machine has cores."
    ))] = 0
    memory: Annotated[str, Meta(pattern="^[1-9][0-9]*[mg]$", description=(
        "Heap of the Spark process that we start. Rows do not pass through it: they stay in its Python workers."
    ))] = "1g"
    compiler: Annotated[Literal["quick", "full"], Meta(description=(
        "Java compiler of the Spark process that we start. `quick`: it starts in half the time; `full`: for machines "
        "where it runs for days under load."
    ))] = "quick"
    class_archive: Annotated[bool, Meta(description=(
        "Keep the classes of Spark prepared in a file of the user's cache directory: it starts faster. The file is "
        "made beside the running server at low priority, once per version of Java and Spark."
    ))] = True
    ui_port: Annotated[int, Meta(ge=0, le=65535, description="Port of Spark's own web pages. 0: none.")] = 0
    conf: Annotated[tuple[str, ...], Meta(description=(
        "Further settings of Spark, each as `spark.key=value`. As an environment variable: separated by commas."
    ))] = ()


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hosts: Annotated[tuple[str, ...], Meta(description=(
        "Further names by which brokers and captures are asked over HTTP, each as `name` or `name:port`: of a proxy, "
        "or in DNS. Their own addresses, advertised names and localhost are known. A request with another Host, or "
        "from a page of another Origin, is refused. As an environment variable: separated by commas."
    ))] = ()
    open_metrics: Annotated[bool, Meta(description=(
        "Whether `/metrics` answers without a token, to everyone who reaches the port."
    ))] = False


class LoggingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dir: Annotated[str, Meta(description=(
        "Directory of the processes' own logs. Empty: `<cluster.dir>/logs`. `-`: standard error, for containers."
    ))] = ""
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description=(
        "Least severity that is written."
    ))] = "info"
    file_bytes_max: Annotated[int, Meta(ge=64 * limits.KIB, description=(
        "Size at which a process log is rotated."
    ))] = 16 * limits.MIB
    files_kept: Annotated[int, Meta(ge=1, le=100, description="Rotated files kept per process.")] = 4


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cluster: ClusterConfig = ClusterConfig()
    store: StoreConfig = StoreConfig()
    broker: BrokerConfig = BrokerConfig()
    capture: CaptureConfig = CaptureConfig()
    spark: SparkConfig = SparkConfig()
    http: HttpConfig = HttpConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def store_url(self) -> str:
        return self.store.url or "sqlite:" + os.path.join(os.path.abspath(self.cluster.dir), "store")

    @property
    def secret_file(self) -> str:
        return self.cluster.secret_file or os.path.join(self.cluster.dir, "secret")

    @property
    def logs_dir(self) -> str:
        return self.logging.dir or os.path.join(self.cluster.dir, "logs")

    @property
    def link_port(self) -> int:
        return self.broker.link_port or self.broker.kafka_port + LINK_PORT_OFFSET

    @property
    def advertised_host(self) -> str:
        return self.broker.advertised_host or self.broker.host

    @property
    def bootstrap(self) -> tuple[str, ...]:
        return self.capture.bootstrap or (f"{self.advertised_host}:{self.broker.kafka_port}",)

    @property
    def capture_host(self) -> str:
        return self.capture.advertised_host or self.capture.host

    @property
    def secret_places(self) -> Places:
        dirs = self.capture.secret_dirs or (os.path.join(self.cluster.dir, "secrets"),)
        return Places(dirs=tuple(map(os.path.abspath, dirs)), env=self.capture.secret_env)

    @property
    def capture_link_port(self) -> int:
        return self.capture.link_port or self.capture.http_port + CAPTURE_LINK_PORT_OFFSET

    def data_dir(self, broker_id: int) -> str:
        return self.broker.data_dir or os.path.join(self.cluster.dir, f"broker-{broker_id}")


def load(path: str, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration in file `path` with the environment's overrides, checked."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; name one with --config, or let `millrace up` make it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {_one_line(error)}") from None
    return anchored(parse(text, environ=environ, where=path), os.path.dirname(os.path.abspath(path)))


def anchored(config: Config, base: str) -> Config:
    """Relative paths count from `base`, the directory of the file: moving it moves all, starting elsewhere nothing."""
    def full(path: str) -> str:
        return path if path in ("", "-") else os.path.normpath(os.path.join(base, path))

    config = _with(config, "cluster", "dir", full(config.cluster.dir))
    config = _with(config, "cluster", "secret_file", full(config.cluster.secret_file))
    config = _with(config, "broker", "data_dir", full(config.broker.data_dir))
    config = _with(config, "logging", "dir", full(config.logging.dir))
    config = _with(config, "capture", "secret_dirs", tuple(map(full, config.capture.secret_dirs)))
    kind, _, path = config.store.url.partition(":")
    return _with(config, "store", "url", f"sqlite:{full(path)}") if kind == "sqlite" else config


def parse(text: str, *, environ: Mapping[str, str] | None = None, where: str = "millrace.yaml") -> Config:
    try:
        tree = YAML(typ="safe", pure=True).load(io.StringIO(text))
    except YAMLError as error:
        raise ConfigError(f"{where}: not YAML: {_one_line(error)}") from None
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: expected sections {', '.join(sections())}; see docs/configuration.md")
    try:
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_explain(error)}") from None
    config = _overridden(config, environ or {})
    check(config)
    return config


def check(config: Config) -> None:
    """The rules that tie keys together."""
    broker = config.broker
    try:
        check_lease_times(broker.lease_s, broker.session_s, broker.clock_drift_max)
    except ConfigError as error:
        raise ConfigError(f"broker.{error}") from None
    if broker.tenure_s >= broker.lease_s:
        raise ConfigError(f"broker.tenure_s: {broker.tenure_s} is not below lease_s {broker.lease_s}; lower it")
    if broker.heartbeat_s * 4 > broker.lease_s:
        raise ConfigError(
            f"broker.heartbeat_s: {broker.heartbeat_s} leaves fewer than four chances within lease_s "
            f"{broker.lease_s}; lower it to {broker.lease_s / 4} or less"
        )
    if config.advertised_host in ("0.0.0.0", "::"):
        raise ConfigError(f"broker.advertised_host: missing; nobody can dial {broker.host}: give this machine's name")
    ports = {"kafka_port": broker.kafka_port, "link_port": config.link_port, "http_port": broker.http_port}
    for name, port in ports.items():
        twin = next((other for other, value in ports.items() if value == port and other != name), None)
        if twin:
            raise ConfigError(f"broker.{name}: {port} is also {twin}; give each listener its own port")
        if port > 65535:
            raise ConfigError(f"broker.{name}: {port} is above 65535; set it, or lower kafka_port")
    if config.capture_host in ("0.0.0.0", "::"):
        raise ConfigError(f"capture.advertised_host: missing; nobody can dial {config.capture.host}: give this "
                          f"machine's name")
    if config.capture_link_port > 65535:
        raise ConfigError(f"capture.link_port: {config.capture_link_port} is above 65535; set it, or lower http_port")
    if config.capture_link_port == config.capture.http_port:
        raise ConfigError(f"capture.link_port: {config.capture_link_port} is also http_port; give each listener its "
                          f"own port")
    for address in config.capture.bootstrap:
        host, colon, port_text = address.rpartition(":")
        if not (host and colon and port_text.isdigit() and 0 < int(port_text) < 65536):
            raise ConfigError(f"capture.bootstrap: {address!r} is not host:port; write for example 10.0.0.5:9092")
    _check_spark(config.spark)
    if config.store.url and not config.store.url.startswith(("sqlite:", "etcd://")):
        raise ConfigError("store.url: unknown kind of store; use sqlite:/path or etcd://host:port/prefix")


def _check_spark(spark: SparkConfig) -> None:
    if spark.remote and spark.master:
        raise ConfigError("spark.master: spark.remote is given, too; leave one of them out")
    if spark.remote and not spark.remote.startswith("sc://"):
        raise ConfigError(f"spark.remote: {spark.remote!r} is no Spark Connect address; write sc://host:port")
    for setting in spark.conf:
        key, equals, _ = setting.partition("=")
        if not (equals and key.startswith("spark.")):
            raise ConfigError(f"spark.conf: {setting!r} is not spark.key=value; correct it")


def sections() -> list[str]:
    return [field.name for field in msgspec.structs.fields(Config)]


def all_keys() -> Iterator[tuple[str, str, msgspec.structs.FieldInfo]]:
    """(section, key, field) of every key there is."""
    for section in msgspec.structs.fields(Config):
        for field in msgspec.structs.fields(section.type):
            yield section.name, field.name, field


def description(section: str, key: str) -> str:
    return str(_meta(section, key).get("description", ""))


def rule(section: str, key: str) -> str:
    """The type of a key with its bounds, for the reference page."""
    meta = _meta(section, key)
    if meta.get("type") == "array":
        return "list of text"
    if "enum" in meta:
        return " or ".join(f"`{value}`" for value in meta["enum"])
    kind = {"integer": "whole number", "number": "number", "boolean": "true or false"}.get(meta.get("type", ""), "text")
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    said = [f"{word} {meta[name]}" for name, word in bounds.items() if name in meta]
    return ", ".join([kind, *said])


def _meta(section: str, key: str) -> dict[str, Any]:
    struct = {field.name: field.type for field in msgspec.structs.fields(Config)}[section]
    schema = msgspec.json.schema(struct)["$defs"][struct.__name__]
    found: dict[str, Any] = schema["properties"][key]
    return found


def dump(tree: Mapping[str, Any], comment: str = "") -> str:
    """YAML text of sections and keys, with `comment` above it."""
    out = io.StringIO()
    for line in comment.splitlines():
        out.write(f"# {line}\n")
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(dict(tree), out)
    return out.getvalue()


# -- overrides ------------------------------------------------------------------------------------------------------


def _overridden(config: Config, environ: Mapping[str, str]) -> Config:
    known = {(section, key): field for section, key, field in all_keys()}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or ENV_SEPARATOR not in name:
            continue
        section, _, key = name[len(ENV_PREFIX):].lower().partition(ENV_SEPARATOR)
        field = known.get((section, key))
        if field is None:
            near = _nearest(f"{section}.{key}", [f"{s}.{k}" for s, k in known])
            raise ConfigError(f"environment variable {name}: unknown key {section}.{key}{near}")
        config = _with(config, section, key, _from_text(name, environ[name], field))
    return config


def _from_text(name: str, text: str, field: msgspec.structs.FieldInfo) -> Any:
    try:
        if isinstance(field.default, tuple):
            return msgspec.convert([part.strip() for part in text.split(",") if part.strip()], field.type)
        return msgspec.convert(text, field.type, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"environment variable {name}: {_explain(error)}") from None


def _with(config: Config, section: str, key: str, value: Any) -> Config:
    part = msgspec.structs.replace(getattr(config, section), **{key: value})
    return msgspec.structs.replace(config, **{section: part})


# -- messages -------------------------------------------------------------------------------------------------------

_AT = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<key>[^`]*)`$")


def _explain(error: msgspec.ValidationError) -> str:
    """The decoder's complaint as `section.key: what is wrong; what to do`."""
    text = _one_line(error)
    at = _AT.search(text)
    path = at["path"].lstrip(".") if at else ""
    what = text[: at.start()] if at else text
    unknown = _UNKNOWN.match(what)
    if unknown:
        key = f"{path}.{unknown['key']}".lstrip(".")
        section_keys = [k for s, k, _ in all_keys() if s == path] if path else sections()
        return f"{key}: unknown key{_nearest(unknown['key'], section_keys)}"
    what = what[:1].lower() + what[1:]
    return f"{path}: {what}; see docs/configuration.md" if path else f"{what}; see docs/configuration.md"


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
