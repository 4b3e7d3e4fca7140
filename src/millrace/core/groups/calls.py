"""Requests to a group coordinator, its answers, and what its shell must do [L20, L21].

Times are values: `Instant.s` runs while the process lives, `Instant.wall_ms` is stored. Ids come in with requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from millrace.errors import MillraceError
from millrace.model.groups import GroupRecord, OffsetValue
from millrace.model.ids import TopicPartition
from millrace.model.positions import StoredPosition


class Code(IntEnum):
    """What Kafka's clients are told."""

    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86


class Instant(NamedTuple):
    s: float
    wall_ms: int


Token = int     # of a request whose answer is owed


# -- requests -------------------------------------------------------------------------------------------------------
class Join(NamedTuple):
    """`fresh_id`: the id a new member gets. `must_know_id`: of version 4 on, a new member asks again with its id.
    `may_skip`: of version 9 on, a returning static leader can be told that its assignment stands."""

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_s: float
    rebalance_s: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    fresh_id: str
    must_know_id: bool = True
    may_skip: bool = True


class Sync(NamedTuple):
    group: str
    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, bytes]
    protocol_type: str | None = None
    protocol: str | None = None


class Heartbeat(NamedTuple):
    group: str
    member_id: str
    instance_id: str | None
    generation: int


class Leaving(NamedTuple):
    """`member_id` "" with an instance id: an operator removes a static member."""

    member_id: str
    instance_id: str | None = None


class Leave(NamedTuple):
    group: str
    members: tuple[Leaving, ...]


class CommitOffsets(NamedTuple):
    """`generation` -1 without a member id: of a tool, or of a consumer that assigns its partitions itself."""

    group: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Mapping[tuple[str, int], OffsetValue]


# -- answers --------------------------------------------------------------------------------------------------------
class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    code: Code
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()      # for the leader only
    skip_assignment: bool = False


class Synced(NamedTuple):
    code: Code
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class Said(NamedTuple):
    """A code alone: heartbeat, delete."""

    code: Code


class Left(NamedTuple):
    code: Code
    members: tuple[tuple[Leaving, Code], ...] = ()


class OffsetsDone(NamedTuple):
    """Per partition, of a commit or of a deletion of offsets."""

    codes: Mapping[tuple[str, int], Code]


class FetchedOffsets(NamedTuple):
    """`positions`: of a changefeed, by topic id; names are the shell's."""

    offsets: Mapping[tuple[str, int], OffsetValue]
    positions: Mapping[TopicPartition, OffsetValue]


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Described(NamedTuple):
    """`state` as Kafka's tools print it."""

    code: Code
    group: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class Listed(NamedTuple):
    group: str
    protocol_type: str
    state: str


class Moved(NamedTuple):
    """Of a stored position. `refused`: nothing was changed."""

    position: StoredPosition | None
    refused: MillraceError | None = None


Reply = Joined | Synced | Said | Left | OffsetsDone | FetchedOffsets | Moved


# -- effects --------------------------------------------------------------------------------------------------------
class Answer(NamedTuple):
    """`after`: not before this offset of the group's partition is below the high watermark; -1: at once."""

    token: Token
    reply: Reply
    after: int = -1


class Append(NamedTuple):
    """Append these to the group's partition, in one batch, in the order of the effects. Then `committed(id)` once they
    are below the high watermark, or `failed(id)`."""

    id: int
    records: tuple[GroupRecord, ...]


Effect = Answer | Append
