from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.admin import check_topic_name, is_internal
from millrace.errors import InvalidTopicName
from millrace.sink.kafka.topics import DEFAULT, parse_template

# As PostgreSQL allows them: anything but NUL, 63 bytes. Drawn from few characters, so that accidents are likely.
_NAMES = st.text(st.sampled_from("a_.-2DEh5FÜ \"/💥{}"), min_size=1, max_size=5) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=15)
_SOURCES = st.text("ab_-5f", min_size=1, max_size=4)
_TABLES = st.tuples(_SOURCES, _NAMES, _NAMES)


@settings(max_examples=300)
@given(st.lists(_TABLES, min_size=2, max_size=8, unique=True), st.sampled_from([DEFAULT, "{schema}.{table}.{source}"]))
def test_K2_two_tables_never_share_a_topic(tables: list[tuple[str, str, str]], template: str) -> None:
    topics = [parse_template(template).topic(*table) for table in tables]
    assert len(set(topics)) == len(tables)
    for topic in topics:
        check_topic_name(topic)
        assert not is_internal(topic)


def test_K2_ordinary_names_stay_as_they_are() -> None:
    assert parse_template(DEFAULT).topic("my-shop", "public", "order_items2") == "my-shop.public.order_items2"
    assert parse_template("cdc.{table}").topic("shop", "public", "a.b") == "cdc.a-2Eb"
    assert parse_template("all").topic("shop", "public", "t") == "all"


@pytest.mark.parametrize(("schema", "table"), [
    ("__millrace", "x"), ("__consumer_offsets", "x"), (".", ".."), ("a/b", "\n")])
def test_K2_hostile_names_meet_no_internal_topic(schema: str, table: str) -> None:
    topic = parse_template("{schema}.{table}").topic("shop", schema, table)
    check_topic_name(topic)
    assert not topic.startswith("__")


def test_K2_long_names_are_cut_and_stay_apart() -> None:
    first, second = ("ü" * 31 + "a", "ü" * 31 + "b")
    topics = {parse_template(DEFAULT).topic("shop", "ß" * 31, name) for name in (first, second)}
    assert len(topics) == 2
    for topic in topics:
        assert len(topic) == 249
        check_topic_name(topic)


@pytest.mark.parametrize(("template", "place", "remedy"), [
    ("{source}_{schema}", 10, "need a dot between them"),
    ("{sorce}.{table}", 1, "is no placeholder; there are"),
    ("a b.{table}", 2, "is not allowed in topic names"),
    ("{table}.{", 9, "is not allowed"),
    ("", 1, "the default is"),
    ("x" * 250, 250, "longer than the 249 characters"),
    ("..", 1, "do not begin with __"),
    ("__millrace.{table}", 1, "do not begin with __"),
])
def test_K2_a_template_is_refused_with_the_place(template: str, place: int, remedy: str) -> None:
    with pytest.raises(InvalidTopicName, match=f"character {place}: .*{remedy}"):
        parse_template(template)
