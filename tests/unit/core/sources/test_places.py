"""Where a marker stands that the stream gives no place [S3, S7]."""

from __future__ import annotations

from millrace.core.sources.places import LastPlaces
from millrace.model.tables import Place


def test_S7_a_drop_stands_behind_the_changes_of_its_table_in_its_transaction() -> None:
    places = LastPlaces()
    places.note(7, Place(100, 3))
    places.note(8, Place(100, 9))
    assert places.behind(7, 100) == Place(100, 4)


def test_S7_a_drop_in_a_transaction_of_its_own_is_the_first_change_there() -> None:
    places = LastPlaces()
    assert places.behind(7, 100) == Place(100, 0)
    places.note(7, Place(90, 5))
    assert places.behind(7, 100) == Place(100, 0)


def test_S7_the_first_sight_of_a_schema_takes_no_seq() -> None:
    places = LastPlaces()
    places.note(7, Place(100, -1))
    assert places.behind(7, 100) == Place(100, 0)
