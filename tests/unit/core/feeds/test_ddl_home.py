"""The ddl position as a stored one: read back alike, and every change that has not passed is in a named target."""

from __future__ import annotations

from uuid import UUID

from millrace.core.delivery.positions import Positions
from millrace.core.feeds.ddl_home import Standing, ddl_commit, ddl_key, ddl_of, named, shown_upto
from millrace.model.changefeeds import DdlPosition
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, StoredPosition
from millrace.model.spans import TableId

KEY = ddl_key("orders", UUID(int=1))
A, B = TableId("shop", 16400), TableId("shop", 4_000_000_000)
ONE, OTHER = TopicPartition(UUID(int=50), 0), TopicPartition(UUID(int=51), 0)


class Home:
    """Of one position, as its group's coordinator keeps it."""

    def __init__(self, at: int = 7) -> None:
        self._positions = Positions()
        self._keep(self._positions.create(KEY, epoch=0, at=Point(at, 0), resolved=at, writer_id=9).record)
        self._keep(self._positions.take(KEY, 1).record)

    def _keep(self, record: StoredPosition | None) -> None:
        if record is not None:
            self._positions.replay(0, KEY, record)

    @property
    def stored(self) -> StoredPosition:
        return self._positions.by_key[KEY].position

    def take(self, epoch: int) -> None:
        self._keep(self._positions.take(KEY, epoch).record)

    def commit(self, wanted: DdlPosition, *standing: Standing, naming: dict[TopicPartition, int] | None = None) -> None:
        commit = ddl_commit(self.stored, wanted, standing, naming or {})
        self._keep(self._positions.commit(KEY, commit).record)


def test_C7_the_position_is_the_changefeeds_place_in_progress() -> None:
    home = Home(7)
    assert (ddl_of(home.stored, "shop"), home.stored.resolved) == (DdlPosition(1, 7), 7)
    home.commit(DdlPosition(1, 12))
    assert (ddl_of(home.stored, "shop"), home.stored.resolved) == (DdlPosition(1, 12), 7)


def test_L21_tools_see_what_was_read_up_to_the_first_change_that_waits() -> None:
    assert shown_upto(12, []) == 12
    assert shown_upto(12, [9, 7, 20]) == 7


def test_C8_isolated_tables_stand_in_the_same_compare_and_set_and_come_back_alike() -> None:
    home = Home()
    both = DdlPosition(1, 12, ((A, 8), (B, 12)))
    home.commit(both, naming={ONE: 3})
    assert ddl_of(home.stored, "shop") == both
    assert named(home.stored) == {ONE: 3}                    # an isolated table is no target
    home.commit(DdlPosition(1, 12, ((A, 9),)))               # one moves, the other rejoins
    assert ddl_of(home.stored, "shop") == DdlPosition(1, 12, ((A, 9),))


def test_K3_a_target_is_named_before_a_change_is_written_and_until_it_has_passed() -> None:
    home = Home()
    home.commit(DdlPosition(1, 7), naming={ONE: 40})
    assert named(home.stored) == {ONE: 40}
    written = Standing(A, 10, ONE, 44)
    home.commit(DdlPosition(1, 7), written, naming={OTHER: 5})     # the next one goes elsewhere
    assert named(home.stored) == {ONE: 44, OTHER: 5}
    home.commit(DdlPosition(1, 11), written)
    assert named(home.stored) == {}


def test_K3_a_change_of_an_isolated_table_stays_named_while_others_pass() -> None:
    home = Home()
    owed, later = Standing(A, 8, ONE, 90), Standing(B, 10, ONE, 100)
    home.commit(DdlPosition(1, 9, ((A, 8),)), naming={ONE: 90})
    home.commit(DdlPosition(1, 11, ((A, 8),)), owed, later)
    assert named(home.stored) == {ONE: 90}
    home.commit(DdlPosition(1, 11, ((A, 9),)), owed)
    assert named(home.stored) == {}


def test_P3_what_a_former_epoch_named_is_there_for_the_next_one() -> None:
    home = Home()
    home.commit(DdlPosition(1, 7), naming={ONE: 40})
    home.take(2)
    assert named(home.stored) == {ONE: 40}
    assert ddl_of(home.stored, "shop") == DdlPosition(2, 7)
