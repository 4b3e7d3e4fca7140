"""Tables that come while changefeeds run: of two that would write to one topic the elder does [K2, C8]."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from millrace.changefeed.office import OfficeStates
from millrace.changefeed.shapes import Shapes
from millrace.changefeed.topic_owners import TopicOwners
from millrace.core.feeds.topic_claims import Claim
from millrace.errors import TableRefused
from millrace.model.changefeeds import ChangefeedChanged, ChangefeedCreated, ChangefeedSpec, TableSettings
from support_data_path import without_spark
from support_homes import table

ORDERS, ITEMS = table(1, "orders"), table(2, "items")
ELDER = ChangefeedSpec(id="elder", source="shop", sink="kafka:", tables=("public.orders",))
YOUNGER = ChangefeedSpec(id="a-younger", source="shop", sink="kafka:?format=json")


def world(*specs: ChangefeedSpec) -> tuple[OfficeStates, TopicOwners]:
    states = OfficeStates()
    for made, spec in enumerate(specs):
        states.replay(ChangefeedCreated(spec, made))

    async def now() -> OfficeStates:
        return states

    return states, TopicOwners(now)


def taken(owners: TopicOwners, feed: str, *tables: Any) -> Mapping[str, Claim]:
    return asyncio.run(owners.taken(feed, tables))


def test_K2_a_topic_is_the_elders_whatever_table_it_sends_there() -> None:
    _, owners = world(ELDER, YOUNGER)
    claim = Claim("shop.public.orders", "elder", "public.orders")
    assert taken(owners, "a-younger", ORDERS, ITEMS) == {claim.topic: claim}
    assert taken(owners, "a-younger", ITEMS) == {}, "the elder's table is gone"
    assert taken(owners, "elder", ORDERS, ITEMS) == {}
    assert taken(owners, "gone", ORDERS) == {}


def test_K2_what_the_elder_says_since_counts() -> None:
    states, owners = world(ELDER, YOUNGER)
    tables = (ORDERS, ITEMS)
    assert taken(owners, "a-younger", *tables).keys() == {"shop.public.orders"}
    moved = TableSettings(tables="public.orders", topic="elsewhere")
    states.replay(ChangefeedChanged(ChangefeedSpec(
        id="elder", source="shop", sink="kafka:", tables=("public.orders",), settings=(moved,))))
    assert taken(owners, "a-younger", *tables).keys() == {"elsewhere"}


def test_K2_C8_a_table_whose_topic_is_the_elders_is_refused_and_only_that() -> None:
    _, owners = world(ELDER, YOUNGER)

    async def story() -> None:
        shapes = Shapes(YOUNGER, without_spark, owners.taken, lambda: (ORDERS, ITEMS))
        await shapes.plan(ITEMS)
        with pytest.raises(TableRefused, match=r"'shop\.public\.orders', where changefeed 'elder' writes public\.o"):
            await shapes.plan(ORDERS)
        await Shapes(ELDER, without_spark, owners.taken, lambda: (ORDERS, ITEMS)).plan(ORDERS)

    asyncio.run(story())
