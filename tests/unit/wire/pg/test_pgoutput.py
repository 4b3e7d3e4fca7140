"""The vectorised decoder against the one that goes row by row, and the shapes it must know."""

from __future__ import annotations

from struct import pack
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support_pgoutput as wire
from millrace.errors import Malformed
from millrace.model.tables import Column, TableSchema
from millrace.wire.pg.chunks import join
from millrace.wire.pg.messages import Begin, Evicted, Item, Message, Relation, Rows, Truncate
from millrace.wire.pg.pgoutput import Decoder
from support_changes import by_table, histories, vector_changes
from support_scalar import ScalarDecoder

KEYED = TableSchema(7, "public", "t", "d", (Column("id", 20, is_key=True), Column("v", 25)))
FULL = TableSchema(7, "public", "t", "f", KEYED.columns)


def transaction(*bodies: bytes, commit_lsn: int = 1000, xid: int = 9) -> list[bytes]:
    """Messages of one transaction; row i has LSN 100 + i."""
    return [wire.xlog(wire.begin(commit_lsn, 5, xid), 1),
            *(wire.xlog(body, 100 + i) for i, body in enumerate(bodies)),
            wire.xlog(wire.commit(commit_lsn, commit_lsn + 10, 5), commit_lsn)]


def rows_of(decoder: Decoder, messages: list[bytes]) -> list[dict[str, Any]]:
    items = decoder.decode(join(messages)).items
    return [row for item in items if isinstance(item, Rows) for row in item.batch.to_pylist()]


@settings(max_examples=40, deadline=None)
@given(histories(), st.data())
def test_S6_vectorised_decoder_gives_what_row_by_row_gives(history: tuple[list[bytes], dict[int, list[str]]],
                                                           data: st.DataObject) -> None:
    messages, keys = history
    cuts = sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=4)))
    decoder = Decoder(keys=keys)
    items: list[Any] = []
    commits = []
    for first, last in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        decoded = decoder.decode(join(messages[first:last]))
        items += decoded.items
        commits += decoded.commits.tolist()
    oracle = ScalarDecoder(keys=keys)
    assert by_table(vector_changes(items)) == by_table(oracle.decode(messages))
    assert commits == [int.from_bytes(m[27:35], "big") for m in messages if m[25:26] == b"C"]
    assert decoder.open is None


@settings(max_examples=20, deadline=None)
@given(histories(), st.data())
def test_S8_streamed_transactions_decode_alike(history: tuple[list[bytes], dict[int, list[str]]],
                                               data: st.DataObject) -> None:
    messages, keys = history
    inner = [wire.xlog(wire.streamed(m[25:], 77), 5) if m[25:26] != b"O" else m
             for m in messages if m[25:26] not in (b"B", b"C")]
    cut = data.draw(st.integers(0, len(inner)))
    decoder, oracle = Decoder(keys=keys), ScalarDecoder(keys=keys)
    begin = Begin(5000, 12345, 77)
    decoder.begin(begin)
    oracle.begin(begin)
    items = [item for part in (inner[:cut], inner[cut:]) for item in decoder.decode(join(part), streamed=True).items]
    assert decoder.open == begin
    decoder.end()
    assert by_table(vector_changes(items)) == by_table(oracle.decode(inner, streamed=True))


@settings(max_examples=40, deadline=None)
@given(histories(), st.data())
def test_S6_hostile_bytes_are_malformed_and_nothing_else(history: tuple[list[bytes], dict[int, list[str]]],
                                                         data: st.DataObject) -> None:
    messages, keys = history
    which = data.draw(st.integers(0, len(messages) - 1))
    hurt = bytearray(messages[which])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(25, len(hurt)))
        if data.draw(st.booleans()):
            del hurt[at:]
        elif at < len(hurt):
            hurt[at] = data.draw(st.integers(0, 255))
    messages[which] = bytes(hurt)
    try:
        items = Decoder(keys=keys).decode(join(messages)).items
    except Malformed:
        return
    for item in items:
        if isinstance(item, Rows):
            item.batch.validate(full=True)


def test_S3_key_update_is_delete_of_the_old_and_insert_that_names_it() -> None:
    rows = rows_of(Decoder(), transaction(
        wire.relation(KEYED), wire.update(7, [b"2", wire.UNCHANGED], [b"1", None]), wire.insert(7, [b"3", b"x"])))
    assert [(r["op"], r["seq"], r["a:id"], r["b:id"], r["unchanged"]) for r in rows] == [
        (2, 0, None, 1, None), (0, 1, 2, 1, b"\2"), (0, 2, 3, None, None)]
    assert rows[0]["lsn"] == rows[1]["lsn"] == 101


def test_S3_old_key_sent_without_change_is_a_plain_update() -> None:
    rows = rows_of(Decoder(), transaction(wire.relation(KEYED), wire.update(7, [wire.UNCHANGED, b"x"], [b"1", None])))
    assert [(r["op"], r["a:id"], r["b:id"], r["unchanged"]) for r in rows] == [(1, 1, 1, None)]


def test_S6_unchanged_value_is_filled_from_the_whole_old_row() -> None:
    decoder = Decoder(keys={7: ["id"]})
    rows = rows_of(decoder, transaction(
        wire.relation(FULL),
        wire.update(7, [b"1", wire.UNCHANGED], [b"1", b"big"], b"O"),
        wire.update(7, [b"2", wire.UNCHANGED], [b"1", b"big"], b"O")))
    assert [(r["op"], r["a:v"], r["b:v"], r["unchanged"]) for r in rows] == [
        (1, "big", "big", None), (2, None, "big", None), (0, "big", "big", None)]


def test_S10_table_without_key_is_carried_whole() -> None:
    rows = rows_of(Decoder(), transaction(
        wire.relation(FULL), wire.update(7, [b"2", b"x"], [b"1", b"y"], b"O"), wire.delete(7, [b"2", b"x"], b"O")))
    assert [(r["op"], r["a:id"], r["b:id"], r["b:v"]) for r in rows] == [(1, 2, 1, "y"), (2, None, 2, "x")]


def test_S3_seq_goes_on_over_chunks_and_begins_anew_with_each_transaction() -> None:
    decoder = Decoder()
    first = transaction(wire.relation(KEYED), *[wire.insert(7, [b"%d" % i, b""]) for i in range(3)])
    second = transaction(*[wire.insert(7, [b"%d" % i, b""]) for i in range(2)], commit_lsn=2000)
    seqs = [r["seq"] for chunk in (first[:3], first[3:4], first[4:] + second) for r in rows_of(decoder, chunk)]
    assert seqs == [0, 1, 2, 0, 1]


def test_S7_markers_have_a_seq_and_part_the_rows() -> None:
    decoder = Decoder(tables=[KEYED])
    wider = TableSchema(7, "public", "t", "d", (*KEYED.columns, Column("n", 23)))
    items = decoder.decode(join(transaction(
        wire.relation(KEYED), wire.insert(7, [b"1", b"a"]), wire.message("millrace.shop", b"{}", 55),
        wire.relation(wider), wire.insert(7, [b"2", b"b", b"5"]), wire.truncate([7, 8], 1)))).items
    rows, said, relation, more, truncate = items
    assert isinstance(rows, Rows)
    assert rows.table == KEYED
    assert isinstance(said, Message)
    assert said == ("millrace.shop", b"{}", 55, Begin(1000, 5 + wire.POSTGRES_EPOCH_US, 9))
    assert isinstance(relation, Relation)
    assert (relation.previous, relation.table.id, relation.seq) == (KEYED, wider.id, 1)
    assert isinstance(more, Rows)
    assert more.batch.column("seq").to_pylist() == [2]
    assert isinstance(truncate, Truncate)
    assert [tuple(t) for t in truncate.tables] == [(7, 3), (8, 0)]
    assert (truncate.cascade, truncate.restart) == (True, False)


def test_S7_key_of_a_full_table_is_told_by_the_event_trigger() -> None:
    told = {"kind": "ddl", "oid": 7, "identity": "f", "columns": [
        [1, "id", 20, -1, "bigint", True, False], [2, "v", 25, -1, "text", True, True]], "tag": "ALTER TABLE"}
    unkeyed = TableSchema(7, "public", "t", "f", (Column("id", 20), Column("v", 25)))
    items = Decoder(tables=[unkeyed]).decode(join(transaction(
        wire.relation(FULL), wire.update(7, [b"1", b"b"], [b"1", b"a"], b"O"),
        wire.message("millrace.shop", msgspec.json.encode(told), 5), wire.message("millrace.shop", b"\xff{", 5),
        wire.relation(FULL), wire.update(7, [b"1", b"c"], [b"1", b"b"], b"O")))).items
    assert [type(item) for item in items] == [Rows, Message, Message, Relation, Rows]
    assert items[3].table.keys == (1,)
    assert [row["op"] for item in items if isinstance(item, Rows) for row in item.batch.to_pylist()] == [1, 2, 0]


def test_S7_a_change_is_told_where_it_happens_by_the_event_trigger() -> None:
    """With rows behind it or not; the relation message that follows brings nothing new."""
    told = {"kind": "ddl", "oid": 7, "schema": "public", "name": "t", "identity": "d", "columns": [
        [1, "id", 20, -1, "bigint", True, True], [2, "v", 25, -1, "text", False, False],
        [3, "n", 23, -1, "integer", False, False]]}
    wider = TableSchema(7, "public", "t", "d", (*KEYED.columns, Column("n", 23)))
    message = wire.message("millrace.shop", msgspec.json.encode(told), 5)
    other = wire.message("millrace.shop", msgspec.json.encode({**told, "oid": 8}), 5)
    decoder = Decoder(tables=[KEYED])
    items = decoder.decode(join(transaction(wire.insert(7, [b"1", b"a"]), message, other))).items
    assert [type(item) for item in items] == [Rows, Message, Relation, Message]
    assert isinstance(items[2], Relation)
    assert (items[2].previous, items[2].table.id, items[2].seq) == (KEYED, wider.id, 1)
    items = decoder.decode(join(transaction(
        message, wire.relation(wider), wire.insert(7, [b"2", b"b", b"5"]), commit_lsn=2000))).items
    assert [type(item) for item in items] == [Message, Rows]
    assert isinstance(items[1], Rows)
    assert items[1].batch.column("seq").to_pylist() == [0]


def test_S12_a_table_that_takes_a_name_ends_what_was_told_under_it() -> None:
    """The former holder gets a truncation with a seq of its own, before the first row under its next name."""
    other = TableSchema(8, "public", "u", "d", KEYED.columns)
    taken = TableSchema(7, "public", "u", "d", KEYED.columns)
    moved = TableSchema(8, "public", "t", "d", KEYED.columns)
    decoder = Decoder(tables=[KEYED, other])
    items = decoder.decode(join(transaction(
        wire.relation(other), wire.insert(8, [b"1", b"a"]), wire.relation(taken), wire.insert(7, [b"2", b"b"]),
        wire.relation(moved), wire.insert(8, [b"3", b"c"])))).items
    assert [type(item) for item in items] == [Rows, Evicted, Relation, Rows, Relation, Rows]
    assert isinstance(items[1], Evicted)
    assert [tuple(table) for table in items[1].tables] == [(8, 1)]
    assert isinstance(items[2], Relation)
    assert items[2].seq == 2                       # behind what the former holder had under the name
    assert isinstance(items[3], Rows)
    assert items[3].batch.column("seq").to_pylist() == [3]
    assert isinstance(items[4], Relation)
    assert (items[4].table.id, items[4].seq) == (moved.id, 3)
    assert isinstance(items[5], Rows)
    assert items[5].batch.column("seq").to_pylist() == [4]


def told(oid: int, name: str) -> bytes:
    """As our event trigger says it."""
    return wire.message("millrace.shop", msgspec.json.encode({
        "kind": "ddl", "oid": oid, "schema": "public", "name": name, "identity": "d", "columns": [
            [1, "id", 20, -1, "bigint", True, True], [2, "v", 25, -1, "text", False, False]]}), 5)


def dropped(oid: int) -> bytes:
    return wire.message("millrace.shop", msgspec.json.encode({"kind": "drop", "oid": oid}), 5)


def seqs_of(items: list[Item]) -> list[tuple[int, str, list[int]]]:
    """Of each item with places: table, its name from there on, seqs."""
    found = []
    for item in items:
        if isinstance(item, Rows):
            found.append((item.table.oid, item.table.name, item.batch.column("seq").to_pylist()))
        elif isinstance(item, Relation):
            found.append((item.table.oid, item.table.name, [item.seq]))
        elif isinstance(item, Evicted):
            found += [(one.oid, "", [one.seq]) for one in item.tables]
    return found


def test_S12_two_tables_that_swap_names_in_one_transaction_never_go_back_under_a_name() -> None:
    """Under each name the places of one transaction have one order, whichever table had it."""
    decoder = Decoder(tables=[KEYED, TableSchema(8, "public", "u", "d", KEYED.columns)])
    rows = [wire.insert(7, [b"%d" % i, b"a"]) for i in range(3)]
    swap = [*rows, told(7, "passing"), told(8, "t"), wire.insert(8, [b"9", b"b"]), told(7, "u")]
    assert seqs_of(decoder.decode(join(transaction(*swap))).items) == [
        (7, "t", [0, 1, 2]), (7, "passing", [3]), (8, "t", [4]), (8, "t", [5]), (7, "u", [5])]
    after = decoder.decode(join(transaction(wire.insert(8, [b"1", b"c"]), told(8, "v"), commit_lsn=2000))).items
    assert seqs_of(after) == [(8, "t", [0]), (8, "v", [1])]      # it counts in one transaction only


def test_S12_a_table_takes_the_name_of_one_that_is_dropped_in_the_same_transaction() -> None:
    """The one that is dropped has lost its name: nothing is told of it behind its drop."""
    decoder = Decoder(tables=[KEYED, TableSchema(8, "public", "u", "d", KEYED.columns)])
    items = decoder.decode(join(transaction(
        wire.insert(7, [b"1", b"a"]), wire.insert(7, [b"2", b"a"]), dropped(7), told(8, "t"),
        wire.insert(8, [b"9", b"b"])))).items
    assert seqs_of(items) == [(7, "t", [0, 1]), (8, "t", [3]), (8, "t", [4])]      # the drop is at 2
    later = Decoder(tables=[KEYED, TableSchema(8, "public", "u", "d", KEYED.columns)], dropped=[7])
    assert seqs_of(later.decode(join(transaction(told(8, "t")))).items) == [(8, "t", [0])]


def test_S3_rows_of_many_transactions_are_one_batch() -> None:
    decoder = Decoder(tables=[KEYED])
    messages = [m for i in range(50) for m in transaction(wire.insert(7, [b"%d" % i, b""]), commit_lsn=1000 + i, xid=i)]
    decoded = decoder.decode(join(messages))
    (rows,) = decoded.items
    assert isinstance(rows, Rows)
    assert rows.batch.column("commit_lsn").to_pylist() == decoded.commits.tolist() == list(range(1000, 1050))
    assert rows.batch.column("xid").to_pylist() == list(range(50))
    assert decoded.end_lsn == 1059


def test_S6_tables_of_no_and_of_1600_columns() -> None:
    none = TableSchema(8, "public", "none", "f", ())
    wide = TableSchema(9, "public", "wide", "d", tuple(Column(f"c{i}", 23, is_key=i == 0) for i in range(1600)))
    cells: list[Any] = [b"1", *[wire.UNCHANGED] * 1599]
    items = Decoder().decode(join(transaction(
        wire.relation(none), wire.insert(8, []), wire.delete(8, [], b"O"),
        wire.relation(wide), wire.update(9, cells)))).items
    batches = [item.batch for item in items if isinstance(item, Rows)]
    assert [b.num_rows for b in batches] == [2, 1]
    assert batches[1].column("unchanged").to_pylist() == [((1 << 1600) - 2).to_bytes(200, "little")]


def test_S8_value_of_64_mb_is_carried() -> None:
    big = b"x" * (64 << 20)
    (row,) = Decoder(tables=[KEYED]).decode(join(transaction(wire.insert(7, [b"1", big])))).items
    assert isinstance(row, Rows)
    assert row.batch.column("a:v")[0].as_buffer().size == len(big)


@pytest.mark.parametrize("messages", [
    [wire.xlog(wire.insert(7, [b"1", b"a"]))],                                          # outside of a transaction
    [wire.xlog(wire.commit(1, 2, 3))],
    [wire.xlog(wire.begin(1, 2, 3)), wire.xlog(wire.begin(1, 2, 3))],
    transaction(wire.insert(8, [b"1", b"a"])),                                          # before its relation
    transaction(wire.insert(7, [b"1"])),
    transaction(wire.insert(7, [b"1", b"a"]) + b"x"),
    transaction(wire.insert(7, [b"1", b"\xff"])),                                       # not UTF-8
    transaction(wire.insert(7, [b"one", b"a"])),
    transaction(b"I" + pack(">I", 7) + b"N" + pack(">H", 2) + b"t\xff\xff\xff\xff1" + b"n"),
    transaction(b"I" + pack(">I", 7) + b"N" + pack(">H", 2) + b"b\0\0\0\x011" + b"n"),    # binary was not asked for
    transaction(b"Z"),
    [b"w"], [b"x" * 40],
])
def test_S6_malformed_is_the_only_error(messages: list[bytes]) -> None:
    with pytest.raises(Malformed):
        Decoder(tables=[KEYED]).decode(join(messages))
