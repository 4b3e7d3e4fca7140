"""The proof of a shared key: two honest sides end proved; whatever else happens, nobody does [A10, L25]."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Malformed
from millrace.wire.proof import (
    MESSAGE_BYTES_MAX,
    NO_MEMBER,
    NONCE_BYTES,
    Acceptor,
    Dialler,
    Kind,
    ProofRefused,
    Reason,
    Side,
)

KEY, OTHER_KEY = b"k" * 32, b"K" * 32
A, B, C = (Side(UUID(int=7), member, member * 10) for member in (1, 2, 3))
nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)


def dialler(me: Side = A, *, key: bytes = KEY, purpose: str = "link", nonce: bytes = b"d" * 32,
            member: int = NO_MEMBER) -> Dialler:
    return Dialler(key, purpose, me, nonce, member=member)


def acceptor(me: Side = B, *, key: bytes = KEY, purpose: str = "link", nonce: bytes = b"a" * 32,
             any_cluster: bool = False) -> Acceptor:
    return Acceptor(key, purpose, me, nonce, any_cluster=any_cluster)


def run(one: Dialler, other: Acceptor) -> list[bytes]:
    """All messages, in order; raises what either side raises."""
    said = [one.opening()]
    while said[-1]:
        said.append(other.receive(said[-1]))
        said.append(one.receive(said[-1]))
    return said[:-1]


@given(nonces, nonces)
def test_A10_two_sides_with_one_key_prove_it_to_each_other(first: bytes, second: bytes) -> None:
    one, other = dialler(nonce=first, member=B.member), acceptor(nonce=second)
    said = run(one, other)
    assert one.proved
    assert other.proved
    assert (one.peer, other.peer) == (B, A)
    assert [message[0] for message in said] == [Kind.OPENING, Kind.CHALLENGE, Kind.ANSWER, Kind.WELCOME]
    assert max(map(len, said)) <= MESSAGE_BYTES_MAX
    assert KEY not in b"".join(said)


@pytest.mark.parametrize("changed", [{"key": OTHER_KEY}, {"purpose": "kafka"}, {"purpose": "lin"}])
def test_A10_another_key_or_purpose_proves_nothing(changed: dict[str, str]) -> None:
    one, other = dialler(**changed), acceptor()  # type: ignore[arg-type]
    answer = one.receive(other.receive(one.opening()))
    with pytest.raises(ProofRefused, match=r"cluster\.secret_file") as refused:
        other.receive(answer)
    assert refused.value.reason is Reason.WRONG_SECRET
    with pytest.raises(ProofRefused, match=r"cluster\.secret_file"):
        one.receive(refused.value.answer)
    assert not one.proved
    assert not other.proved


def test_A10_an_acceptor_without_the_key_is_found_out() -> None:
    one, other = dialler(), acceptor(key=OTHER_KEY)
    answer = one.receive(other.receive(one.opening()))
    pretended = acceptor(key=OTHER_KEY)
    pretended.receive(dialler(key=OTHER_KEY).opening())
    welcome = pretended.receive(dialler_answer(OTHER_KEY, pretended))
    with pytest.raises(ProofRefused) as refused:
        one.receive(welcome)
    assert refused.value.reason is Reason.WRONG_SECRET
    assert not one.proved
    assert answer


def dialler_answer(key: bytes, other: Acceptor) -> bytes:
    one = dialler(key=key)
    fresh = acceptor(key=key)
    return one.receive(fresh.receive(one.opening()))


@given(st.integers(0, 3), st.integers(0, MESSAGE_BYTES_MAX * 8), st.booleans())
def test_A10_one_changed_bit_in_any_message_proves_nothing(which: int, bit: int, cut: bool) -> None:
    """On the way of message `which` one bit is turned, or the end is cut off: at least one side is not proved, and
    never the one that was sent the changed message."""
    one, other = dialler(member=B.member), acceptor()
    message = one.opening()
    try:
        for step in range(4):
            if step == which:
                bit %= len(message) * 8
                changed = bytearray(message)
                changed[bit // 8] ^= 1 << bit % 8
                message = bytes(changed[:-1] if cut else changed)
            message = other.receive(message) if step % 2 == 0 else one.receive(message)
    except (Malformed, ProofRefused):
        pass
    assert not (one.proved and other.proved)
    assert not one.proved
    assert other.proved is (which == 3), "the last message alone comes after the acceptor's own decision"


@given(nonces.filter(lambda nonce: nonce != b"a" * 32))
def test_A10_a_recorded_proof_opens_no_second_connection(fresh: bytes) -> None:
    said = run(dialler(), acceptor())
    again = acceptor(nonce=fresh)
    again.receive(said[0])
    with pytest.raises(ProofRefused):
        again.receive(said[2])
    assert not again.proved


@given(nonces.filter(lambda nonce: nonce != b"d" * 32))
def test_A10_a_recorded_welcome_convinces_no_later_dialler(fresh: bytes) -> None:
    said = run(dialler(), acceptor())
    later = dialler(nonce=fresh)
    later.opening()
    later.receive(said[1])
    with pytest.raises(ProofRefused):
        later.receive(said[3])
    assert not later.proved


def test_A10_nobody_convinces_a_side_with_its_own_words() -> None:
    """A peer without the key sends back what it receives, on the same connection and on a second one."""
    one = dialler()
    opening = one.opening()
    answer = one.receive(bytes([Kind.CHALLENGE]) + opening[1:])       # its own side and nonce
    with pytest.raises(ProofRefused):
        one.receive(bytes([Kind.WELCOME]) + answer[1:])               # its own mac
    assert not one.proved

    first, second = acceptor(nonce=b"1" * 32), acceptor(nonce=b"2" * 32)
    challenge = first.receive(dialler().opening())
    echo = second.receive(bytes([Kind.OPENING]) + challenge[1:])      # the second is to answer for the first
    for mac in (challenge[-32:], echo[-32:]):
        with pytest.raises((ProofRefused, Malformed)):
            first.receive(bytes([Kind.ANSWER]) + mac)
    assert not first.proved
    assert not second.proved


def test_A10_a_dialler_answers_no_other_member_and_no_other_cluster() -> None:
    one = dialler(member=C.member)
    with pytest.raises(ProofRefused, match="member 2 answers where 3 was dialled") as refused:
        one.receive(acceptor(B).receive(one.opening()))
    assert refused.value.reason is Reason.OTHER_MEMBER

    stranger = Side(UUID(int=8), 2, 20)
    one, other = dialler(member=2), acceptor(stranger)
    with pytest.raises(ProofRefused, match=r"cluster\.id") as refused:
        other.receive(one.opening())
    assert refused.value.reason is Reason.FOREIGN_CLUSTER
    with pytest.raises(ProofRefused, match="00000008"):
        one.receive(refused.value.answer)
    one = dialler(member=2)
    challenge = acceptor(stranger, any_cluster=True).receive(dialler(stranger).opening())
    one.opening()
    with pytest.raises(ProofRefused, match=r"cluster\.id"):
        one.receive(challenge)


def test_A10_a_client_may_leave_the_cluster_open_and_is_bound_to_the_one_it_met() -> None:
    one, other = Dialler(KEY, "kafka", Side(), b"d" * 32), acceptor(purpose="kafka", any_cluster=True)
    run(one, other)
    assert one.proved
    assert other.proved
    assert one.peer == B
    with pytest.raises(ProofRefused):
        acceptor(purpose="kafka").receive(Dialler(KEY, "kafka", Side(), b"d" * 32).opening())


@given(st.lists(st.binary(max_size=MESSAGE_BYTES_MAX), max_size=4), st.booleans())
def test_A10_any_bytes_raise_typed_errors_only(messages: list[bytes], known_kind: bool) -> None:
    one, other = dialler(), acceptor()
    one.opening()
    for side in (one, other):
        for message in messages:
            if known_kind and message:
                message = bytes([message[0] % 6]) + message[1:]
            try:
                side.receive(message)  # type: ignore[union-attr]
            except (Malformed, ProofRefused):
                pass
            assert not side.proved  # type: ignore[union-attr]


def test_A10_after_a_failure_no_message_is_taken() -> None:
    one, other = dialler(), acceptor()
    opening = one.opening()
    with pytest.raises(Malformed):
        other.receive(opening[:-1])
    with pytest.raises(Malformed, match="after its end"):
        other.receive(opening)
