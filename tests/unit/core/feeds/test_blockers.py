"""In which order people are told of what waits [C9]."""

from __future__ import annotations

from millrace.core.feeds.blockers import turn


def test_C9_causes_are_told_before_what_follows_from_them_and_the_oldest_first() -> None:
    waits = [("checkpoint", 245.0), ("schema change 7 (alter)", 90.0), ("rounds of capture 1", 8.0),
             ("capture 2", 12.0), ("schema change 9 (create)", 91.0), ("dispatchers of capture 1", 0.5),
             ("span 0", 19.0)]
    assert [what for what, _ in sorted(waits, key=lambda one: turn(*one))] == [
        "capture 2", "rounds of capture 1", "dispatchers of capture 1", "span 0",
        "schema change 9 (create)", "schema change 7 (alter)", "checkpoint"]
