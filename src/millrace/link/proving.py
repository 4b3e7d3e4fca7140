"""What the two ends of links share: the key, fresh nonces, and the count of proofs that failed [A10].

In: a key, the role of this process (brokers and captures have links of their own kind), randomness by port. Out: a
machine of `wire.proof` for each connection. Promise: a refusal is counted each time and logged once per peer until
that peer proves itself or fails for another reason, and the key is never shown.
"""

from __future__ import annotations

from collections import Counter

import structlog

from millrace import limits
from millrace.model.messages import Hello
from millrace.ops.cluster_secret import Key
from millrace.ops.ports import Random
from millrace.wire.proof import Acceptor, Dialler, Reason, Side

log = structlog.get_logger(__name__)

NOT_A_PROOF = "not_a_proof"            # garbage, an older version, or another protocol
SILENT = "silent"                      # no whole proof until the deadline
REASONS = (*(reason.name.lower() for reason in Reason), NOT_A_PROOF, SILENT)


class Proving:
    def __init__(self, key: Key, role: str, random: Random) -> None:
        self._key, self._purpose, self._random = key, f"link of a {role}", random
        self._logged: dict[str, str] = {}          # peer -> the reason that was logged last
        self.refusals: Counter[str] = Counter()    # by reason, since the process started

    def dialler(self, hello: Hello, member: int) -> Dialler:
        return Dialler(self._key.reveal(), self._purpose, side_of(hello), nonce(self._random), member=member)

    def acceptor(self, hello: Hello) -> Acceptor:
        return Acceptor(self._key.reveal(), self._purpose, side_of(hello), nonce(self._random))

    def refused(self, peer: str, reason: str, why: str) -> None:
        self.refusals[reason] += 1
        if self._logged.pop(peer, None) != reason:
            log.error("link refused", peer=peer, reason=reason, why=why)
        self._logged[peer] = reason
        while len(self._logged) > limits.LINK_PEERS_LOGGED_MAX:
            del self._logged[next(iter(self._logged))]

    def counts(self) -> list[tuple[tuple[str], int]]:
        """For metrics: every reason, also those that never came."""
        return [((reason,), self.refusals[reason]) for reason in REASONS]

    def proved(self, peer: str) -> None:
        self._logged.pop(peer, None)


def side_of(hello: Hello) -> Side:
    return Side(hello.cluster_id, hello.member, hello.incarnation)


def nonce(random: Random) -> bytes:
    """Two random UUIDs: 244 bits that nobody can foresee."""
    return random.uuid().bytes + random.uuid().bytes
