"""Whose a target topic is: that of one changefeed, the one that was made first [K2, K3, K4].

    spec, tables of its source ─▶ claims (sink.routes) ─┬─▶ creation, update: refuse_taken
                                                        └─▶ a table that came since: owner, by its elders' claims

In: which topics changefeeds send which tables to. Out: TopicTaken, or whose a topic is. Writers have ids of their own
[K3], so two changefeeds would not disturb each other in a topic; but each row would stand there twice, formats would be
mixed, a tombstone of one would remove the other's row, and a watermark would tell nothing of the other's rows [K4].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millrace.core.feeds.feeds import FeedEntry
from millrace.errors import TopicTaken
from millrace.model.changefeeds import ChangefeedSpec


class Claim(NamedTuple):
    """A changefeed sends the rows of a table there."""

    topic: str
    changefeed: str
    table: str


def refuse_taken(own: Iterable[Claim], others: Iterable[Claim], before: Iterable[Claim] = ()) -> None:
    """`before`: what the changefeed claimed until now. What came since it was made is told by the table itself, and
    must not stand in the way of an update."""
    known = {claim.topic for claim in before}
    taken = {claim.topic: claim for claim in others}
    met = [(claim, taken[claim.topic]) for claim in own if claim.topic in taken and claim.topic not in known]
    if met:
        (claim, other), more = met[0], len(met) - 1
        also = f" (and {more} more of its tables)" if more else ""
        raise TopicTaken(f"{claim.table} would go to topic {claim.topic!r}{also}, {why(other, claim.changefeed)}")


def why(other: Claim, changefeed: str) -> str:
    return (f"where changefeed {other.changefeed!r} writes {other.table}: each row would stand there twice, or in two "
            f"formats; give a template of its own, as topic={changefeed}.{{schema}}.{{table}}, or leave the table to "
            "one of them")


def elders(feeds: Mapping[str, FeedEntry], feed: str) -> list[ChangefeedSpec]:
    """Of the same source, made before it: of a table that comes, the topic is theirs."""
    me = feeds[feed]
    born = (me.created_ms, feed)
    return [entry.spec for name, entry in sorted(feeds.items())
            if (entry.created_ms, name) < born and entry.spec.source == me.spec.source]
