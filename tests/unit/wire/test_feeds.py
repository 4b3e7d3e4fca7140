"""Messages between captures: what was said is what is heard, and nothing else is [C2, L19]."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Malformed, NewerFormat
from millrace.model import feed_messages as fm
from millrace.model.changefeeds import FeedError
from millrace.model.spans import Span, TableId
from millrace.wire import feeds

NUMBER = st.integers(0, 2**63 - 1)
TIME = st.floats(0, 1e12)
TEXT = st.text(max_size=20)
TABLE = st.builds(TableId, TEXT, NUMBER)
SPAN = st.builds(Span, TABLE, st.lists(st.integers(0, 99), max_size=5).map(tuple))
LIVENESS = st.sampled_from(get_args(fm.Liveness))
STATE = st.sampled_from(get_args(fm.DispatcherState))
ERROR = st.builds(
    FeedError, code=TEXT, kind=st.sampled_from(("retry", "restart", "isolate", "fail")), message=TEXT,
    table=st.none() | TABLE, span=st.none() | NUMBER, capture=st.none() | NUMBER, first_ms=NUMBER, last_ms=NUMBER,
    count=NUMBER)
VIEW = st.builds(
    fm.View, NUMBER, NUMBER, st.lists(st.tuples(NUMBER, NUMBER), max_size=3).map(tuple),
    st.lists(NUMBER, max_size=3).map(tuple), st.dictionaries(TEXT, NUMBER, max_size=3),
    st.lists(st.tuples(NUMBER, NUMBER), max_size=3).map(tuple), NUMBER)
REPORT = st.builds(fm.DispatcherReport, NUMBER, NUMBER, STATE, st.none() | ERROR)
HELD = st.builds(fm.MaintainerReport, TEXT, NUMBER, st.booleans())

EVERY: dict[type, st.SearchStrategy[fm.FeedMessages]] = {
    fm.CoordinatorPing: st.builds(fm.CoordinatorPing, NUMBER, TIME, st.none() | TIME, st.none() | VIEW),
    fm.PlaceMaintainer: st.builds(fm.PlaceMaintainer, NUMBER, TEXT, NUMBER, NUMBER),
    fm.EndMaintainer: st.builds(fm.EndMaintainer, NUMBER, TEXT, NUMBER, NUMBER),
    fm.CaptureAnswer: st.builds(
        fm.CaptureAnswer, NUMBER, NUMBER, NUMBER, TIME, st.tuples(NUMBER, NUMBER), LIVENESS,
        st.lists(HELD, max_size=3).map(tuple), NUMBER, st.lists(TEXT, max_size=3).map(tuple)),
    fm.MaintainerRefused: st.builds(fm.MaintainerRefused, NUMBER, TEXT, NUMBER, TEXT),
    fm.FeedFailing: st.builds(fm.FeedFailing, TEXT, NUMBER, ERROR),
    fm.MaintainerPing: st.builds(fm.MaintainerPing, TEXT, NUMBER, TIME, NUMBER, NUMBER, st.booleans()),
    fm.PrepareDispatcher: st.builds(fm.PrepareDispatcher, TEXT, NUMBER, NUMBER, NUMBER, SPAN, NUMBER),
    fm.StartDispatcher: st.builds(fm.StartDispatcher, TEXT, NUMBER, NUMBER, NUMBER, SPAN, NUMBER),
    fm.StopDispatcher: st.builds(fm.StopDispatcher, TEXT, NUMBER, NUMBER, NUMBER, NUMBER),
    fm.ManagerAnswer: st.builds(
        fm.ManagerAnswer, TEXT, NUMBER, NUMBER, NUMBER, TIME, st.booleans(), NUMBER, NUMBER,
        st.lists(REPORT, max_size=3).map(tuple)),
    fm.DispatcherRefused: st.builds(fm.DispatcherRefused, TEXT, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, TEXT),
}


def test_every_kind_of_message_is_drawn_below() -> None:
    assert set(EVERY) == set(get_args(fm.FeedMessages))


@given(st.one_of(list(EVERY.values())))
def test_C2_messages_round_trip(message: fm.FeedMessages) -> None:
    heard = feeds.decode(memoryview(feeds.encode(message)))
    assert heard == message
    assert type(heard) is type(message)


@given(st.binary(max_size=100), st.one_of(list(EVERY.values())), st.integers(0, 99))
def test_hostile_bytes_raise_malformed_only(noise: bytes, message: fm.FeedMessages, at: int) -> None:
    whole = feeds.encode(message)
    cut = min(at, len(whole))
    for body in (noise, bytes([feeds.VERSION]) + noise, whole[:cut], whole[:cut] + noise):
        try:
            feeds.decode(body)
        except (Malformed, NewerFormat):
            pass


def test_L19_another_version_is_refused_by_name() -> None:
    body = bytearray(feeds.encode(fm.EndMaintainer(1, "f", 2, 3)))
    body[0] = feeds.VERSION + 1
    with pytest.raises(NewerFormat, match="upgrade"):
        feeds.decode(bytes(body))
    body[0] = 0
    with pytest.raises(Malformed, match="version 0"):
        feeds.decode(bytes(body))
    with pytest.raises(Malformed, match="without version"):
        feeds.decode(b"")


def test_an_unknown_kind_is_refused() -> None:
    body = bytes([feeds.VERSION]) + msgspec.msgpack.encode(["zz", 1, "f", 2, 3])
    with pytest.raises(Malformed, match="zz"):
        feeds.decode(body)
