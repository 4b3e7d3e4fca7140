"""A topic is one changefeed's [K2, K3, K4]."""

from __future__ import annotations

import pytest

from millrace.core.feeds.feeds import FeedEntry
from millrace.core.feeds.topic_claims import Claim, elders, refuse_taken
from millrace.errors import TopicTaken
from millrace.model.changefeeds import ChangefeedSpec

ITEMS, ORDERS = Claim("shop.items", "old", "public.items"), Claim("shop.orders", "old", "public.orders")


def of(feed: str, *claims: Claim) -> list[Claim]:
    return [claim._replace(changefeed=feed) for claim in claims]


def test_K2_a_topic_of_another_changefeed_is_refused_with_its_name_the_table_and_the_remedy() -> None:
    with pytest.raises(TopicTaken) as refused:
        refuse_taken(of("new", ITEMS), [ORDERS, ITEMS])
    for part in ("public.items would go to topic 'shop.items'", "changefeed 'old' writes public.items",
                 "topic=new.{schema}.{table}"):
        assert part in str(refused.value)
    with pytest.raises(TopicTaken, match="and 1 more of its tables"):
        refuse_taken(of("new", ITEMS, ORDERS), [ORDERS, ITEMS])
    refuse_taken(of("new", ITEMS), [ORDERS])
    refuse_taken([], [ORDERS])


def test_K2_an_update_is_refused_for_topics_that_it_adds_and_not_for_those_that_were_met_before() -> None:
    with pytest.raises(TopicTaken, match=r"public\.orders would go"):
        refuse_taken(of("new", ITEMS, ORDERS), [ORDERS, ITEMS], before=of("new", ITEMS))
    refuse_taken(of("new", ITEMS), [ORDERS, ITEMS], before=of("new", ITEMS))


def test_K2_elders_are_those_of_the_same_source_that_were_made_before() -> None:
    def entry(feed: str, made: int, source: str = "shop") -> FeedEntry:
        return FeedEntry(ChangefeedSpec(id=feed, source=source, sink="kafka:"), made)

    feeds = {"c": entry("c", 5), "b": entry("b", 5), "a": entry("a", 9), "other": entry("other", 1, "crm")}
    names = {feed: [spec.id for spec in elders(feeds, feed)] for feed in feeds}
    assert names == {"a": ["b", "c"], "b": [], "c": ["b"], "other": []}
