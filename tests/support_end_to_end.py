"""A run of the end-to-end proof that went well, small and made by hand: what its judge is shown."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from millrace.cli.prove_check import check
from millrace.cli.prove_findings import Finding
from millrace.cli.prove_messages import Happened, Row, Told, understand
from millrace.log.client import Record
from millrace.model.positions import Point
from millrace.model.tables import Place
from millrace.sink.kafka.headers import OLD_KEY, Provenance, value_of

NAME = ("public", "orders")
PARTITIONS = 2


@dataclass
class Run:
    """A small run that went well: messages as a changefeed writes them, history as a witness tells it."""

    history: list[Happened] = field(default_factory=list)
    told: Told = field(default_factory=lambda: defaultdict(list))
    rows: dict[int, Row] = field(default_factory=dict)
    columns: tuple[str, ...] = ("id", "note")
    table: tuple[str, str] = NAME
    lsn: int = 100
    copies: int = 0
    oid: int = 7

    def commit(self) -> None:
        self.lsn += 10

    def row(self, op: str, number: int, *, old_key: int | None = None, sent: bool = True, **values: Any) -> None:
        place = self._place()
        row = {"id": number, **dict.fromkeys(self.columns[1:]), **self.rows.get(number, {}), **values}
        shown = row if sent else {**row, "note": "__debezium_unavailable_value"}
        if op == "d":
            shown = {"id": number, **dict.fromkeys(self.columns[1:])}
            self.rows.pop(number, None)
        else:
            self.rows[number] = row
        images = {"before": shown if op == "d" else None, "after": None if op == "d" else shown}
        self.history.append(Happened(
            self.oid, self.table, place, op, (str(number),), self.columns, self.types, **images,
            old_key=None if old_key is None else (str(old_key),)))
        key = b'{"id":%d}' % number
        headers = ((OLD_KEY, b'{"id":%d}' % old_key),) if old_key is not None else ()
        partition = crc32(key) % PARTITIONS
        self.send(partition, Record(self._value(place, op=op, **images), key, headers), place)
        if op == "d":
            self.send(partition, Record(None, key), place)

    def held(self, number: int, note: str) -> None:
        """A row that was there before anybody looked."""
        row = {"id": number, "note": note}
        self.rows[number] = dict(row)
        self.history.append(Happened(self.oid, self.table, Place(0, 0), "r", (str(number),), self.columns, self.types,
                                     after=row, told="apart"))

    def copied(self, number: int, note: str, lsn: int, *, source: bytes = b"c" * 16, **more: Any) -> None:
        """A row of a copy; copies have topics of their own and count their rows."""
        key, place = b'{"id":%d}' % number, Place(lsn, self.copies)
        self.copies += 1
        value = self._value(place, op="r", before=None, after={"id": number, "note": note, **more})
        self.send(crc32(key) % PARTITIONS, Record(value, key), place, source)

    def copied_again(self) -> None:
        """All rows, as they are now."""
        for number, row in sorted(self.rows.items()):
            key, place = b'{"id":%d}' % number, Place(self.lsn, self.copies)
            self.copies += 1
            after = {name: row.get(name) for name in self.columns}
            self.send(crc32(key) % PARTITIONS, Record(self._value(place, op="r", before=None, after=after), key), place,
                      b"e" * 16)

    def alter(self, *columns: str) -> None:
        place = self._place()
        self.columns = columns
        self.history.append(Happened(self.oid, self.table, place, "alter", None, columns, self.types))
        described = [{"name": name, "nativeType": kind} for name, kind in zip(columns, self.types, strict=True)]
        change = {"type": "ALTER", "id": "x", "table": {"columns": described}}
        self.send(0, Record(self._value(place, tableChanges=[change])), place, source=b"p" * 16)

    def rename(self, name: str) -> None:
        """It goes on in another topic; in the one that it leaves nothing stays."""
        self._empty(self._place())
        self.table = (self.table[0], name)
        self.alter(*self.columns)

    def truncate(self) -> None:
        place = self._place()
        self.rows.clear()
        self.history.append(Happened(self.oid, self.table, place, "t", None, self.columns, self.types))
        self._empty(place)

    def _empty(self, place: Place) -> None:
        for partition in range(PARTITIONS):
            self.send(partition, Record(self._value(place, op="t", before=None, after=None)), place, source=b"p" * 16)

    def watermark(self, lsn: int) -> None:
        value = {"op": "m", "source": {"lsn": lsn}, "message": {"prefix": "millrace.watermark"}}
        for partition in range(PARTITIONS):
            self.send(partition, Record(json.dumps(value).encode(), b"{}"), Place(lsn, 0))

    def send(self, partition: int, record: Record, place: Place, source: bytes = b"s" * 16) -> None:
        messages = self.told[self.topic, partition]
        header = ("millrace", value_of(Provenance(source, 0, 1, 1), Point(*place)))
        messages.append(understand(self.topic, partition, record._replace(
            offset=len(messages), headers=(header, *record.headers))))

    @property
    def types(self) -> tuple[int, ...]:
        return 20, *[25] * (len(self.columns) - 1)

    @property
    def topic(self) -> str:
        return f"shop.{self.table[0]}.{self.table[1]}"

    def check(self, told: Told | None = None) -> list[Finding]:
        return check(self.told if told is None else told, self.history, {self.table: list(self.rows.values())})

    def _place(self) -> Place:
        here = [one.place for one in self.history if one.place.commit_lsn == self.lsn]
        return Place(self.lsn, len(here))

    def _value(self, place: Place, **more: Any) -> bytes:
        source = {"schema": self.table[0], "table": self.table[1], "sequence": json.dumps([str(n) for n in place])}
        return json.dumps({"source": source, **more}).encode()


def a_run() -> Run:
    run = Run()
    for number in (50, 51):
        run.held(number, "copied")
        run.copied(number, "copied", 50)
    for number in range(10):
        run.row("c", number, note=f"n{number}")
    run.commit()
    run.row("u", 3, sent=False)
    run.row("d", 4)
    run.row("c", 40, old_key=4, sent=False, note="n4")
    run.alter("id", "note", "more")
    for number in range(8):
        run.row("u", number, note="later", more="m")
        run.commit()
    run.watermark(run.lsn - 10)
    run.alter("id", "text", "more")
    run.rows = {key: {"id": key, "text": row["note"], "more": row.get("more")} for key, row in run.rows.items()}
    run.commit()
    run.copied_again()
    run.commit()
    for number in range(5):
        run.row("u", number, text="renamed")
    return run


def harms(findings: list[Finding]) -> set[str]:
    return {found.harm for found in findings}
