"""The store contract: what every metadata store promises, and the nouns of its calls.

In: an office holder's records under its token, candidates for offices, leases of members.
Out: one ordered history per office, who holds it, which members live.

Promises (checked for every store by tests/unit/store/contract_suite.py):
- An office has at most one holder at a time; tokens only grow, and every write carries one. A write under a token that
  is not the office's present one is refused (`Deposed`), however late it arrives [L18].
- A record whose append returned is durable; indexes start at 1 and have no gap.
- A call ends within `limits.STORE_CALL_S` (watch: its time-out on top): an answer or `StoreUnreachable`. After
  `StoreUnreachable` a write may or may not have happened: the caller reads after `expected_index` before it goes on.
- A new holder reads the history after its acquire, not before: what the former one had under way may arrive until then.
- A holder that is provably gone [L17], expired or released makes way at once; so does the caller's own process, which
  may have lost the answer of an earlier acquire. The same holds for who lives as a member: nobody else takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from millrace.model.ids import ProcessIdentity

STORE_FORMAT = 1  # layout of office state and of the database or key space
RECORD_FORMAT = 1  # envelope of one stored record or snapshot; its content carries a version of its own


class Candidate(msgspec.Struct, frozen=True):
    """Who wants or has an office: a member, where its links are answered, and what proves its death."""

    member: int
    address: str
    process: ProcessIdentity


class Holder(msgspec.Struct, frozen=True):
    """Who has an office. `vacant`: released, expired or provably gone, so that an acquire would succeed now."""

    candidate: Candidate
    token: int
    expires_in_s: float
    vacant: bool


class MemberLease(msgspec.Struct, frozen=True):
    """One living member, as it last described itself. Times may be a second off, since some stores count whole ones;
    but what is left grows only when the member is heard."""

    member: str
    incarnation: int
    expires_in_s: float
    heard_ago_s: float
    info: bytes


class Store(Protocol):
    """See the module's promises. Offices are named by any text of 1 to 100 characters, members too."""

    async def acquire(self, office: str, candidate: Candidate, ttl_s: float) -> int:
        """The office under a new, higher token, for `ttl_s` from now. Raises OfficeHeld."""

    async def renew(self, office: str, token: int, ttl_s: float) -> None:
        """`ttl_s` more from now, also after expiry as long as nobody else took the office. Raises Deposed."""

    async def release(self, office: str, token: int) -> None:
        """Free for the next candidate at once; the token writes nothing more. Repeats are harmless. Raises Deposed."""

    async def grant(self, office: str, candidate: Candidate, epoch: int) -> None:
        """Gives an office without lease, its token is `epoch`. The same candidate may repeat it. Raises Deposed."""

    async def holder(self, office: str) -> Holder | None:
        """Who has or last had the office; None when nobody ever did."""

    async def append(self, office: str, token: int, expected_index: int, records: Sequence[bytes]) -> int:
        """All records or none after `expected_index`; the new last index. Raises Deposed, IndexConflict."""

    async def read(self, office: str, after_index: int, limit: int) -> list[tuple[int, bytes]]:
        """Up to `limit` records above `after_index`, in order. Raises IndexCompacted below the snapshot."""

    async def save_snapshot(self, office: str, token: int, index: int, blob: bytes) -> None:
        """`blob` stands for all records up to `index`, which go. Raises Deposed, IndexConflict (older, not reached)."""

    async def load_snapshot(self, office: str) -> tuple[int, bytes] | None:
        """The last saved snapshot and its index."""

    async def watch(
        self, office: str, after_index: int, timeout_s: float, *, known_token: int | None = None
    ) -> int:
        """The last index as soon as it is above `after_index` or the holder changed or became vacant; else at time-out.

        A change is one against the state at the call, or, with `known_token`, against an office held under that token:
        what happened between the caller's last look and this call is then seen at once.
        """

    async def lease(self, member: str, incarnation: int, ttl_s: float, info: bytes) -> None:
        """This process lives as `member` for `ttl_s` more; 0 ends it.

        Raises StaleIncarnation for a lower one than was ever leased, MemberHeld while another process lives as it; then
        nothing has changed.
        """

    async def leases(self) -> list[MemberLease]:
        """The living members by name: not expired, not provably gone."""

    async def close(self) -> None:
        """Lets go of files, threads and connections. Holds stay as they are: release first to hand over at once."""
