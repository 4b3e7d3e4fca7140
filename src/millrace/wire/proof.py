"""Both sides of a connection prove that they hold one key, without sending it [A10, L25].

    dialler                                            acceptor
       │ OPENING    side, nonce ─────────────────────────▶ │   the side's cluster is checked
       │ ◀───────────────────────────── CHALLENGE side, nonce   the side's cluster and member are checked
       │ ANSWER     mac of the dialler ──────────────────▶ │   compared: from here on the dialler is proved
       │ ◀────────────────────────── WELCOME mac of the acceptor   compared: from here on the acceptor is proved
       │ ◀────────────────────────── REFUSED reason, cluster id    in place of CHALLENGE or WELCOME

    mac = HMAC-SHA256(key, label, purpose, role, both sides, both nonces); side = cluster id, member, incarnation

In: a key, who we are, 32 fresh random bytes, the other side's messages. Out: the messages to send, then `proved`, or
ProofRefused with its reason. Promise: a message recorded earlier, sent back, changed, or meant for another purpose,
role, member or cluster proves nothing. All fields have a fixed width; Malformed is what bytes of another form raise.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from millrace.errors import Malformed, SecretNotProved

NONCE_BYTES = 32
MAC_BYTES = 32
MESSAGE_BYTES_MAX = 128                # of any message here

_LABEL = b"millrace proof v1"
_SIDE = Struct(">16siq")
_OPENING = Struct(f">B16siq{NONCE_BYTES}s")
_MAC = Struct(f">B{MAC_BYTES}s")
_REFUSED = Struct(">BB16s")

NO_CLUSTER = UUID(int=0)               # a client that knows addresses only
NO_MEMBER = -1


class Kind(IntEnum):
    OPENING = 1
    CHALLENGE = 2
    ANSWER = 3
    WELCOME = 4
    REFUSED = 5


class Reason(IntEnum):
    WRONG_SECRET = 1
    FOREIGN_CLUSTER = 2
    OTHER_MEMBER = 3                   # found by the dialler: another process answers at this address


class Role(IntEnum):
    DIALLER = 1
    ACCEPTOR = 2


class Side(NamedTuple):
    cluster_id: UUID = NO_CLUSTER
    member: int = NO_MEMBER
    incarnation: int = -1

    def encoded(self) -> bytes:
        return _SIDE.pack(self.cluster_id.bytes, self.member, self.incarnation)


class ProofRefused(SecretNotProved):
    """`answer`: what the other side is to be sent before the connection ends; empty: nothing."""

    def __init__(self, reason: Reason, why: str, answer: bytes = b"") -> None:
        super().__init__(why)
        self.reason, self.answer = reason, answer


class _Transcript:
    """What both macs are made of: neither side can choose all of it."""

    __slots__ = ("_key", "_said")

    def __init__(self, key: bytes, purpose: str, dialler: tuple[Side, bytes], acceptor: tuple[Side, bytes]) -> None:
        name = purpose.encode()
        sides = b"".join(side.encoded() + nonce for side, nonce in (dialler, acceptor))
        self._key, self._said = key, b"".join((_LABEL, bytes([len(name)]), name, sides))

    def mac(self, role: Role) -> bytes:
        return hmac.digest(self._key, bytes([role]) + self._said, hashlib.sha256)

    def is_mac(self, role: Role, mac: bytes) -> bool:
        return hmac.compare_digest(self.mac(role), mac)


class Dialler:
    """NEW ─opening─▶ OPENED ─CHALLENGE─▶ ANSWERED ─WELCOME─▶ PROVED; a refusal or a bad message ends it."""

    def __init__(self, key: bytes, purpose: str, me: Side, nonce: bytes, *, member: int = NO_MEMBER) -> None:
        """`member`: the only one that may answer; NO_MEMBER: any."""
        assert len(nonce) == NONCE_BYTES
        self._key, self._purpose, self._me, self._nonce, self._member = key, purpose, me, nonce, member
        self._due: Kind | None = None
        self._transcript: _Transcript | None = None
        self.peer = Side()
        self.proved = False

    def opening(self) -> bytes:
        self._due = Kind.CHALLENGE
        return _OPENING.pack(Kind.OPENING, self._me.cluster_id.bytes, self._me.member, self._me.incarnation,
                             self._nonce)

    def receive(self, message: bytes | memoryview) -> bytes:
        """What to send next; empty: the proof is complete."""
        due, self._due = self._due, None
        if due is not None and _kind_of(message) == Kind.REFUSED:
            raise _refusal_of(message, self._me)
        if due is Kind.CHALLENGE:
            return self._answer(message)
        if due is Kind.WELCOME:
            return self._welcomed(message)
        raise Malformed("a proof goes on after its end")

    def _answer(self, message: bytes | memoryview) -> bytes:
        self.peer, nonce = _decode_opening(message, Kind.CHALLENGE)
        if self._me.cluster_id not in (NO_CLUSTER, self.peer.cluster_id):
            raise _foreign(self._me, self.peer.cluster_id)
        if self._member not in (NO_MEMBER, self.peer.member):
            raise ProofRefused(Reason.OTHER_MEMBER,
                               f"member {self.peer.member} answers where {self._member} was dialled")
        self._transcript = _Transcript(self._key, self._purpose, (self._me, self._nonce), (self.peer, nonce))
        self._due = Kind.WELCOME
        return _MAC.pack(Kind.ANSWER, self._transcript.mac(Role.DIALLER))

    def _welcomed(self, message: bytes | memoryview) -> bytes:
        assert self._transcript is not None
        if not self._transcript.is_mac(Role.ACCEPTOR, _decode_mac(message, Kind.WELCOME)):
            raise _wrong_secret()
        self.proved = True
        return b""


class Acceptor:
    """WAITING ─OPENING─▶ CHALLENGED ─ANSWER─▶ PROVED; a refusal or a bad message ends it."""

    def __init__(self, key: bytes, purpose: str, me: Side, nonce: bytes, *, any_cluster: bool = False) -> None:
        """`any_cluster`: the dialler need not know which cluster this is."""
        assert len(nonce) == NONCE_BYTES
        self._key, self._purpose, self._me, self._nonce = key, purpose, me, nonce
        self._any_cluster = any_cluster
        self._due: Kind | None = Kind.OPENING
        self._transcript: _Transcript | None = None
        self.peer = Side()
        self.proved = False

    def receive(self, message: bytes | memoryview) -> bytes:
        """What to send next."""
        due, self._due = self._due, None
        if due is Kind.OPENING:
            return self._challenge(message)
        if due is Kind.ANSWER:
            return self._welcome(message)
        raise Malformed("a proof goes on after its end")

    def _challenge(self, message: bytes | memoryview) -> bytes:
        self.peer, nonce = _decode_opening(message, Kind.OPENING)
        known = (self._me.cluster_id, NO_CLUSTER) if self._any_cluster else (self._me.cluster_id,)
        if self.peer.cluster_id not in known:
            raise _foreign(self._me, self.peer.cluster_id, self._refusal(Reason.FOREIGN_CLUSTER))
        self._transcript = _Transcript(self._key, self._purpose, (self.peer, nonce), (self._me, self._nonce))
        self._due = Kind.ANSWER
        return _OPENING.pack(Kind.CHALLENGE, self._me.cluster_id.bytes, self._me.member, self._me.incarnation,
                             self._nonce)

    def _welcome(self, message: bytes | memoryview) -> bytes:
        assert self._transcript is not None
        if not self._transcript.is_mac(Role.DIALLER, _decode_mac(message, Kind.ANSWER)):
            raise _wrong_secret(self._refusal(Reason.WRONG_SECRET))
        self.proved = True
        return _MAC.pack(Kind.WELCOME, self._transcript.mac(Role.ACCEPTOR))

    def _refusal(self, reason: Reason) -> bytes:
        return _REFUSED.pack(Kind.REFUSED, reason, self._me.cluster_id.bytes)


# -- messages ------------------------------------------------------------------------------------------------------


def _kind_of(message: bytes | memoryview) -> int:
    return message[0] if len(message) else 0


def _decode_opening(message: bytes | memoryview, due: Kind) -> tuple[Side, bytes]:
    _check(message, due, _OPENING)
    _, cluster, member, incarnation, nonce = _OPENING.unpack(message)
    return Side(UUID(bytes=cluster), member, incarnation), nonce


def _decode_mac(message: bytes | memoryview, due: Kind) -> bytes:
    _check(message, due, _MAC)
    mac: bytes = _MAC.unpack(message)[1]
    return mac


def _check(message: bytes | memoryview, due: Kind, form: Struct) -> None:
    if _kind_of(message) != due or len(message) != form.size:
        raise Malformed(f"{due.name} of a proof was due: {form.size} bytes, not {len(message)} of kind "
                        f"{_kind_of(message)}")


def _refusal_of(message: bytes | memoryview, me: Side) -> ProofRefused:
    _check(message, Kind.REFUSED, _REFUSED)
    _, reason, cluster = _REFUSED.unpack(message)
    return _foreign(me, UUID(bytes=cluster)) if reason == Reason.FOREIGN_CLUSTER else _wrong_secret()


def _foreign(me: Side, other: UUID, answer: bytes = b"") -> ProofRefused:
    return ProofRefused(Reason.FOREIGN_CLUSTER, f"this is cluster {me.cluster_id}, the other side is of {other}; "
                        "correct cluster.id or the address", answer)


def _wrong_secret(answer: bytes = b"") -> ProofRefused:
    return ProofRefused(Reason.WRONG_SECRET, "the other side holds another secret; give every machine the same "
                        "cluster.secret_file and restart", answer)
