"""Control messages between brokers and the controller: requests and their replies, carried by links.

Every message that can be stale carries the epoch that makes it so (incarnation of a broker, token of a controller,
leader and partition epoch of a partition); the receiver refuses old ones [L15].
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from millrace.model.floors import AnyFloorCall, FloorsTold
from millrace.model.ids import BrokerId, ProcessIdentity
from millrace.model.records import ControllerRecord, Endpoint


class Message(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of all control messages."""


class Hello(Message, frozen=True, tag="hello"):
    """Who a process is on its links: the sides of a proof are made of it. As a frame: the dialler of a proved link has
    a new incarnation."""

    format: int
    cluster_id: UUID
    member: BrokerId
    incarnation: int


class RemoteError(Message, frozen=True, tag="error"):
    """The other side refused: `code` is one of the error tree's codes."""

    code: str
    message: str


class Register(Message, frozen=True, tag="register"):
    """A started process asks to be a member. Asked again with the same start_id it gets the same answer."""

    broker: BrokerId
    start_id: UUID
    endpoint: Endpoint
    process: ProcessIdentity
    directory_id: UUID
    directory_is_new: bool
    clean_stop: bool
    flush: str
    rack: str
    host_id: str


class Registered(Message, frozen=True, tag="registered"):
    token: int
    incarnation: int
    index: int


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """Soft state of one replica; overwrites nothing the controller decided [L12]."""

    topic_id: UUID
    partition: int
    role: str
    leo: int
    hw: int
    leader_epoch: int


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    broker: BrokerId
    incarnation: int
    sequence: int
    sent_at: float
    metadata_index: int
    ready: bool
    stopping: bool
    loop_lag_s: float
    disk_free_bytes: int
    changed: tuple[ReplicaReport, ...] = ()
    disk_is_full: bool = False         # its leaders are better off elsewhere
    trouble: str = ""                  # what it would say last, should it never be heard again


class HeartbeatOk(Message, frozen=True, tag="heartbeat_ok"):
    """Extends the lease, counted from `sent_at` as the broker sent it [L16]."""

    token: int
    incarnation: int
    sent_at: float
    fenced: bool
    may_stop: bool


class MetadataPoll(Message, frozen=True, tag="metadata_poll"):
    """Long poll: answered when there are records after `index`, or after `wait_s`."""

    broker: BrokerId
    incarnation: int
    index: int
    wait_s: float


class MetadataRecords(Message, frozen=True, tag="metadata_records"):
    """Records (index, end]. `snapshot`: forget all you have, these records rebuild the state at `end`."""

    token: int
    start: int
    end: int
    snapshot: bool
    more: bool
    records: tuple[ControllerRecord, ...]


class IsrChange(msgspec.Struct, frozen=True, array_like=True):
    """`incarnations`: of each member of `isr`, as the leader knew them when it proposed; a member that has restarted
    since (and may have lost its tail) is refused. Empty: not checked."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[BrokerId, ...]
    incarnations: tuple[int, ...] = ()


class AlterIsr(Message, frozen=True, tag="alter_isr"):
    """Compare-and-set on (leader epoch, partition epoch), many partitions in one message [L8]."""

    broker: BrokerId
    incarnation: int
    changes: tuple[IsrChange, ...]


class AlterIsrResult(msgspec.Struct, frozen=True, array_like=True):
    """`error`: "" done, "fenced" stale leader epoch or not leader, "stale" other partition epoch, "ineligible"."""

    topic_id: UUID
    partition: int
    error: str


class AlterIsrDone(Message, frozen=True, tag="alter_isr_done"):
    token: int
    results: tuple[AlterIsrResult, ...]


class LeaveReplica(Message, frozen=True, tag="leave_replica"):
    """A damaged replica asks to be out of ISR and ELR before it refetches [L10]."""

    broker: BrokerId
    incarnation: int
    topic_id: UUID
    partition: int
    why: str


class RaiseEpoch(Message, frozen=True, tag="raise_epoch"):
    """A replica found a disk epoch above the controller's: its epoch must be passed before it may lead [L19]."""

    broker: BrokerId
    incarnation: int
    topic_id: UUID
    partition: int
    disk_epoch: int


class NewTopic(msgspec.Struct, frozen=True):
    """`partitions`/`replication_factor` -1: the default. `assignment` overrides both: replicas per partition."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = {}
    assignment: dict[int, tuple[BrokerId, ...]] = {}


class CreateTopics(Message, frozen=True, tag="create_topics"):
    """`internal`: asked by millrace itself, which alone may create topics under its own prefix."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    internal: bool = False


class DeleteTopics(Message, frozen=True, tag="delete_topics"):
    """By name, or by id where the name is empty. `internal`: as for CreateTopics."""

    topics: tuple[tuple[str, UUID | None], ...]
    internal: bool = False


class NewPartitions(msgspec.Struct, frozen=True):
    name: str
    total: int
    assignment: tuple[tuple[BrokerId, ...], ...] = ()


class CreatePartitions(Message, frozen=True, tag="create_partitions"):
    topics: tuple[NewPartitions, ...]
    validate_only: bool = False


class ConfigEdit(msgspec.Struct, frozen=True):
    """Value None: back to the default."""

    topic: str
    key: str
    value: str | None


class AlterConfigs(Message, frozen=True, tag="alter_configs"):
    """`replace`: keys of a named topic that are not in `edits` go back to their defaults."""

    edits: tuple[ConfigEdit, ...]
    topics: tuple[str, ...] = ()
    replace: bool = False
    validate_only: bool = False


class ElectUnclean(Message, frozen=True, tag="elect_unclean"):
    """An operator's explicit command: lose what is missing, come back now [L13]."""

    topic: str
    partition: int
    broker: BrokerId


class RemoveBroker(Message, frozen=True, tag="remove_broker"):
    """A broker that is gone for good and holds no replica is to be a member no more [L29]."""

    broker: BrokerId


class AdminResult(msgspec.Struct, frozen=True):
    """Of one topic of an admin request. `code`: "" or an error-tree code."""

    name: str
    code: str = ""
    message: str = ""
    topic_id: UUID | None = None
    partitions: int = 0
    replication_factor: int = 0


class AdminDone(Message, frozen=True, tag="admin_done"):
    """`index`: a broker that has replayed up to it sees the outcome."""

    token: int
    index: int
    results: tuple[AdminResult, ...]


class AskProducerIds(Message, frozen=True, tag="ask_producer_ids"):
    broker: BrokerId
    incarnation: int


class ProducerIds(Message, frozen=True, tag="producer_ids"):
    token: int
    first: int
    count: int


class AskFloors(Message, frozen=True, tag="ask_floors"):
    """A client's call about floors, as it was sent to one of the brokers [F10]."""

    call: AnyFloorCall


class FloorsAnswer(Message, frozen=True, tag="floors_answer"):
    token: int
    told: FloorsTold


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """A leader's wish: its partition starts at `start`."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    start: int


class FloorToRelease(msgspec.Struct, frozen=True, array_like=True):
    """`offset`: where the floor stood when its holder was found beyond its budget."""

    owner: str
    topic_id: UUID
    partition: int
    offset: int
    why: str


class AdvanceLogStarts(Message, frozen=True, tag="advance_log_starts"):
    """Log starts are recorded before anybody removes a byte, against the floors that stand at that moment [L23]."""

    broker: BrokerId
    incarnation: int
    cuts: tuple[Cut, ...]
    release: tuple[FloorToRelease, ...] = ()
    at_ms: int = 0


class CutResult(msgspec.Struct, frozen=True, array_like=True):
    """`start`: in force. `held_by`: the owner of the floor that forbids the cut, "" where it was made or is stale."""

    topic_id: UUID
    partition: int
    start: int
    held_by: str = ""


class LogStartsRecorded(Message, frozen=True, tag="log_starts_recorded"):
    token: int
    index: int
    results: tuple[CutResult, ...]
    released: tuple[FloorToRelease, ...] = ()


AnyMessage = (
    Hello | RemoteError | Register | Registered | Heartbeat | HeartbeatOk | MetadataPoll | MetadataRecords | AlterIsr
    | AlterIsrDone | LeaveReplica | RaiseEpoch | CreateTopics | DeleteTopics | CreatePartitions | AlterConfigs
    | ElectUnclean | AdminDone | AskProducerIds | ProducerIds | AskFloors | FloorsAnswer
    | AdvanceLogStarts | LogStartsRecorded | RemoveBroker
)
