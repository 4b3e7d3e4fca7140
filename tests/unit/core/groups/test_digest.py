"""What may be left out of a replay is never missed."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace import limits
from millrace.core.groups.digest import Digest, Encoded

records = st.builds(Encoded, st.sampled_from([b"a", b"b", b"c", b"d"]), st.none() | st.binary(max_size=1))


def replayed(log: list[Encoded]) -> dict[bytes, bytes | None]:
    alive = dict(log)
    return {key: value for key, value in alive.items() if value is not None}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records, max_size=80))
def test_L21_a_replay_from_the_last_restatement_gives_what_all_gives(
    monkeypatch: pytest.MonkeyPatch, written: list[Encoded]
) -> None:
    monkeypatch.setattr(limits, "RESTATE_EVERY_RECORDS", 5)
    monkeypatch.setattr(limits, "RESTATE_BATCH_BYTES", 2)       # a piece is a key or two
    digest, log = Digest(), []
    for record in written:
        if digest.begin_if_due(len(log)):
            piece, rest = digest.piece()
            for again in piece:
                log.append(again)
                digest.note(again)
            digest.restated(rest)
        log.append(record)
        digest.note(record)
        assert replayed(log[digest.replay_from :]) == replayed(log) == digest.alive
        assert len(log) - digest.replay_from <= 5 + 3 * 4 + 4


def test_L21_new_keys_end_at_a_limit_and_known_ones_may_still_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_KEYS_MAX", 2)
    digest = Digest()
    for key in (b"a", b"b"):
        assert digest.has_room((Encoded(key, b"1"),))
        digest.note(Encoded(key, b"1"))
    assert not digest.has_room((Encoded(b"c", b"1"),))
    assert digest.has_room((Encoded(b"a", b"2"), Encoded(b"b", None), Encoded(b"c", None)))
    digest.note(Encoded(b"b", None))
    assert digest.has_room((Encoded(b"c", b"1"),))
    assert not digest.has_room((Encoded(b"c", b"1"), Encoded(b"d", b"1")))
