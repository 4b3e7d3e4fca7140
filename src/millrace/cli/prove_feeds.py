"""The changefeeds of the proof: one over all that the shop has, one that shows some tables otherwise.

    WHOLE ── every table, a topic each, tombstones
    SHOWN ── some tables, with filters, projections, many tables in one topic, watermarks [K4], no schema changes

In: history of a witness, rows of the database. Out: the same as a changefeed must tell them, by code of its own:
nothing of the product's filters takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from millrace.cli.prove_check import Rows
from millrace.cli.prove_messages import ALTER, CREATE, DELETE, DROP, INSERT, UPDATE, Happened, Name, Row
from millrace.cli.prove_shop import TURNED, is_turned

Settings = tuple[Mapping[str, Any], ...]


class View(NamedTuple):
    """What is told of a table. `takes`: rows that go on; whether a row was taken before a change must be known, by
    identity FULL or since only the key counts. `shows`: columns by their names in messages, each with the column it is
    made of and how."""

    takes: Callable[[Row], bool] = lambda row: True
    shows: Mapping[str, tuple[str, Callable[[Any], Any]]] | None = None


class Feed(NamedTuple):
    """`views`: by name, None: of every table all. `prefix`: of its topics."""

    name: str
    prefix: str
    sink: str
    tables: tuple[str, ...] = ("*.*",)
    settings: Settings = ()
    views: Callable[[Name], View | None] = lambda name: View()
    ddl: bool = True                   # schema changes are told

    def history(self, history: Iterable[Happened]) -> list[Happened]:
        """What its messages must tell."""
        return [told for one in history if (view := self.views(one.table)) is not None
                and (self.ddl or one.op not in (CREATE, ALTER, DROP)) for told in _viewed(one, view)]

    def rows(self, rows: Rows) -> dict[Name, list[Row]]:
        """What a consumer must have at the end."""
        return {name: [_shown(row, view) for row in found if view.takes(row)] for name, found in rows.items()
                if (view := self.views(name)) is not None}


def _viewed(one: Happened, view: View) -> Iterator[Happened]:
    op = _op(one, view)
    if op is None:
        return
    before, after = one.before, one.after
    if op != one.op:                   # it came into the view, or left it
        before, after = (before, None) if op == DELETE else (None, after)
    columns = one.columns if view.shows is None else tuple(view.shows)
    yield one._replace(op=op, before=before and _shown(before, view), after=after and _shown(after, view),
                       columns=columns)


def _op(one: Happened, view: View) -> str | None:
    """None: nothing is told."""
    is_in = one.after is not None and view.takes(one.after)
    if one.op != UPDATE:
        return one.op if is_in or (one.before is not None and view.takes(one.before)) or not _is_row(one) else None
    was_in = view.takes(one.before) if one.before is not None else is_in       # only the key counts, and it is the same
    return {(True, True): UPDATE, (False, True): INSERT, (True, False): DELETE}.get((was_in, is_in))


def _is_row(one: Happened) -> bool:
    return one.before is not None or one.after is not None


def _shown(row: Row, view: View) -> Row:
    if view.shows is None:
        return row
    return {name: how(row[column]) for name, (column, how) in view.shows.items()}


# -- the two -------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _upper(value: Any) -> Any:
    return None if value is None else value.upper()


CARTS = View(lambda row: row["v"] is not None and ("5" in row["v"] or row["v"] == "v"))
CUSTOMERS = View(lambda row: row["id"] % 2 == 0, {
    "id": ("id", _same), "shout": ("name", _upper), "since": ("since", _same)})
ORDERS = View(shows={"id": ("id", _same), "amount": ("total", _same), "state": ("state", _same)})
_VIEWS = {"carts": CARTS, "customers": CUSTOMERS, "orders": ORDERS}
_SETTINGS: Settings = (
    {"tables": "public.carts", "filter": "v LIKE '%5%' OR v = 'v'"},
    {"tables": "public.customers", "filter": "id % 2 = 0", "projection": ["id", "upper(name) AS shout", "since"]},
    {"tables": "public.orders", "projection": ["id", "total AS amount", "state"]},
    {"tables": "public.small_*", "topic": "shown.small", "partition_by": "table"},
)


def _shown_view(name: Name) -> View | None:
    schema, table = name
    if is_turned(name):
        return View()
    if schema != "public":
        return None
    return _VIEWS.get(table) or (View() if table.startswith(("small_", "joined_")) else None)


def _asked_view(name: Name) -> View | None:
    return _VIEWS.get(name[1]) if name[1] in ("carts", "customers") else None


WHOLE = Feed("proof", "shop.", "kafka:?format=debezium-json&partitions=3&ddl=inline")
SHOWN = Feed(
    "shown", "shown.", "kafka:?format=debezium-json&partitions=3&watermarks=true&tombstones=false&ddl=off"
    "&topic=shown.{table}",
    ("public.carts", "public.customers", "public.orders", "public.small_*", "public.joined_*", f"{TURNED}*.*"),
    _SETTINGS, _shown_view, ddl=False)
# Every row of it is asked about in Spark SQL.
ASKED = Feed("asked", "asked.", "kafka:?format=debezium-json&partitions=3&ddl=inline&topic=asked.{table}",
             ("public.carts", "public.customers"), _SETTINGS[:2], _asked_view)
FEEDS = (WHOLE, SHOWN)
