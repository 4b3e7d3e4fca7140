"""The rules of an office, as pure functions from one state to the next: the same for every store.

In: the office's stored state and a call. Out: the state after it, or the error that refuses it. Each store makes the
step from one to the other atomic in its own way (a transaction, a compare on a revision).

    never held ──acquire──▶ held ──release──▶ released ──acquire──▶ held (token + 1) …
    held ──expired, gone, other boot──▶ free: acquire (token + 1), or renew by the same token if nobody came
    any ──grant(epoch > token)──▶ granted: no lease, ends only by release or by a higher grant
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from millrace import limits
from millrace.errors import (
    Deposed,
    IndexCompacted,
    IndexConflict,
    InvalidRequest,
    MemberHeld,
    MessageTooLarge,
    NewerFormat,
    OfficeHeld,
    StaleIncarnation,
)
from millrace.model.ids import ProcessIdentity
from millrace.ops.ports import Processes
from millrace.store.contract import RECORD_FORMAT, STORE_FORMAT, Candidate, Holder

NAME_CHARS_MAX = 100
CLOCK_SLACK_S = 0.1  # rounding, and processors whose clocks differ a little


class OfficeState(msgspec.Struct, frozen=True, omit_defaults=False):
    """All that is remembered of an office beside its records. `expires_at` is for stores without own leases."""

    format: int = STORE_FORMAT
    token: int = 0
    index: int = 0
    floor: int = 0
    candidate: Candidate | None = None
    released: bool = True
    leased: bool = True
    ttl_s: float = 0.0
    expires_at: float = 0.0


NEVER_HELD = OfficeState()


class _Versioned(msgspec.Struct, frozen=True):
    """Only the version, so that a newer layout is recognised before it fails to decode."""

    format: int


def encode_state(state: OfficeState) -> bytes:
    return msgspec.json.encode(state)


def decode_state(data: bytes | str, *, where: str) -> OfficeState:
    refuse_newer(msgspec.json.decode(data, type=_Versioned).format, STORE_FORMAT, where=where)
    return msgspec.json.decode(data, type=OfficeState)


def refuse_newer(found: int, known: int, *, where: str) -> None:
    if found > known:
        raise NewerFormat(
            f"{where}: format {found} is of a newer millrace, this one knows up to {known}: run the newer version"
        )


def check_name(name: str) -> None:
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise InvalidRequest(f"name of an office or member has {len(name)} characters: use 1 to {NAME_CHARS_MAX}")


# -- who may have it -----------------------------------------------------------------------------------------------
def is_over(state: OfficeState, now: float) -> bool:
    """The lease ended. One that ends later than it could have been given is of another clock, hence of another boot."""
    return now >= state.expires_at or state.expires_at - now > state.ttl_s + CLOCK_SLACK_S


def is_vacant(state: OfficeState, *, over: bool, processes: Processes) -> bool:
    """An acquire would succeed: nobody, released, expired, or provably gone. A granted office is only ever released."""
    if state.candidate is None or state.released:
        return True
    if not state.leased:
        return False
    return over or processes.is_gone(state.candidate.process)


def holder_of(state: OfficeState, *, expires_in_s: float, vacant: bool) -> Holder | None:
    if state.candidate is None:
        return None
    left_s = max(0.0, expires_in_s) if state.leased else math.inf
    return Holder(candidate=state.candidate, token=state.token, expires_in_s=left_s, vacant=vacant)


def acquired(state: OfficeState, candidate: Candidate, *, office: str, vacant: bool, ttl_s: float) -> OfficeState:
    """The next state; `expires_at` is for the store to fill in."""
    if not (vacant or (state.leased and candidate == state.candidate)):
        assert state.candidate is not None
        raise OfficeHeld(f"office {office} is held by member {state.candidate.member} with token {state.token}")
    return msgspec.structs.replace(
        state, token=state.token + 1, candidate=candidate, released=False, leased=True, ttl_s=ttl_s
    )


def granted(state: OfficeState, candidate: Candidate, epoch: int, *, office: str) -> OfficeState:
    if epoch == state.token and candidate == state.candidate and not state.leased:
        return state
    if epoch <= state.token:
        raise Deposed(f"office {office}: epoch {epoch} is not above the present {state.token}")
    return msgspec.structs.replace(state, token=epoch, candidate=candidate, released=False, leased=False)


def released(state: OfficeState, token: int, *, office: str) -> OfficeState:
    refuse_other_token(state, token, office=office)
    return msgspec.structs.replace(state, released=True)


def refuse_other_token(state: OfficeState, token: int, *, office: str) -> None:
    if token != state.token or state.candidate is None:
        raise Deposed(f"office {office}: token {token} is not the present {state.token}")


def refuse_stale(state: OfficeState, token: int, *, office: str) -> None:
    """Only the present holder, as long as it has not released, may write."""
    refuse_other_token(state, token, office=office)
    if state.released:
        raise Deposed(f"office {office}: token {token} was released")


# -- its history ---------------------------------------------------------------------------------------------------
def check_records(records: Sequence[bytes]) -> None:
    if len(records) > limits.RECORDS_PER_APPEND_MAX:
        raise InvalidRequest(f"{len(records)} records in one append: at most {limits.RECORDS_PER_APPEND_MAX}")
    size_bytes = sum(map(len, records))
    if size_bytes > limits.STORE_APPEND_BYTES_MAX:
        raise MessageTooLarge(f"append of {size_bytes} bytes: at most {limits.STORE_APPEND_BYTES_MAX}")


def appended(state: OfficeState, token: int, expected_index: int, count: int, *, office: str) -> OfficeState:
    refuse_stale(state, token, office=office)
    if expected_index != state.index:
        raise IndexConflict(f"office {office}: expected index {expected_index}, the last one is {state.index}")
    return msgspec.structs.replace(state, index=state.index + count)


def snapshotted(state: OfficeState, token: int, index: int, *, office: str) -> OfficeState:
    refuse_stale(state, token, office=office)
    if not state.floor <= index <= state.index:
        raise IndexConflict(f"office {office}: no snapshot at {index}, the records span {state.floor} to {state.index}")
    return msgspec.structs.replace(state, floor=index)


def check_snapshot(blob: bytes) -> None:
    if len(blob) > limits.STORE_SNAPSHOT_BYTES_MAX:
        raise MessageTooLarge(f"snapshot of {len(blob)} bytes: at most {limits.STORE_SNAPSHOT_BYTES_MAX}")


def refuse_compacted(state: OfficeState, after_index: int, *, office: str) -> None:
    if after_index < state.floor:
        raise IndexCompacted(f"office {office}: records up to {state.floor} are in the snapshot, asked {after_index}")


def check_record_format(found: int, *, office: str, index: int) -> None:
    refuse_newer(found, RECORD_FORMAT, where=f"office {office}, record {index}")


def refuse_stale_incarnation(member: str, *, given: int, stored: int) -> None:
    if given < stored:
        raise StaleIncarnation(f"member {member}: incarnation {given} is older than {stored}")


def refuse_living_other(member: str, holder: ProcessIdentity, *, over: bool, processes: Processes) -> None:
    """A member's lease is its process's own until it ends, or until there is proof that the process is gone [C1]."""
    if not over and holder != processes.me() and not processes.is_gone(holder):
        raise MemberHeld(f"member {member}: process {holder.pid} lives as it")
