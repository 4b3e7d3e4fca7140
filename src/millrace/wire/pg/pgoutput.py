"""Decoder of pgoutput: chunks of messages in, change batches out.

    messages ──join──▶ Chunk ──StreamSplitter──▶ Plain ──▶ Decoder.decode
                                   └▶ Block ──▶ spool ──▶ Decoder.begin, decode(streamed), end

In: chunks of XLogData messages, protocol 1 to 4 in text format. Out: items in the order of the stream. Kept between
chunks: relations, the open transaction, how many changes each table has had in it. Promise: the rows of one chunk,
table and schema become one batch, whatever transactions they are of; Malformed is the only error, and the decoder is
not to be used after one. The only loops are over tables, columns, and messages that are not rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from millrace.errors import Malformed
from millrace.model.tables import IDENTITY_FULL, ColumnFacts, Lsn, Oid, TableSchema
from millrace.wire.pg.cells import Ints, View
from millrace.wire.pg.chunks import HEADER_BYTES, Chunk
from millrace.wire.pg.facts import described
from millrace.wire.pg.messages import (
    TRUNCATE_CASCADE,
    TRUNCATE_RESTART,
    Begin,
    Decoded,
    Described,
    Evicted,
    Item,
    LifeTold,
    Message,
    Relation,
    Rows,
    Truncate,
    Truncated,
    life_told,
    read_message,
    read_relation,
    read_truncate,
    read_type,
    table_told,
)
from millrace.wire.pg.rows import Vectors, build
from millrace.wire.pg.types import POSTGRES_EPOCH_US

_BEGIN, _COMMIT, _ORIGIN, _RELATION, _TYPE, _TRUNCATE, _MESSAGE = b"BCORYTM"
_BEGIN_BYTES, _COMMIT_BYTES = HEADER_BYTES + 21, HEADER_BYTES + 26
_ROW_BYTES_MIN = HEADER_BYTES + 8             # type, oid, tag, column count

_IS_ROW = np.zeros(256, np.bool_)
_IS_ROW[list(b"IUD")] = True


class Decoder:
    """One per connection, or per place it starts again from.

    `tables`: schemas known at that place; a relation message that says the same is no change. `keys`: names of the key
    columns of tables with identity FULL, whose relation messages do not tell; those of known tables are known, and our
    event trigger's messages tell of changes. `prefix`: of logical messages to give. `dropped`: of `tables` those that
    were dropped before that place: they hold no name.

    seq counts the changes of a table in one transaction. A table that takes a name in a transaction goes on behind
    everything that was told under that name in the same transaction: (commit LSN, seq) never goes back under a name.
    """

    def __init__(self, *, tables: Iterable[TableSchema] = (), keys: Mapping[Oid, Iterable[str]] | None = None,
                 prefix: str = "millrace", dropped: Iterable[Oid] = ()) -> None:
        self.tables: dict[Oid, TableSchema] = {table.oid: table for table in tables}
        self.open: Begin | None = None
        self._keys: dict[Oid, frozenset[str]] = {
            table.oid: frozenset(table.columns[i].name for i in table.keys)
            for table in self.tables.values() if table.identity == IDENTITY_FULL}
        self._keys |= {oid: frozenset(names) for oid, names in (keys or {}).items()}
        self._prefix = prefix
        self._type_names: dict[Oid, str] = {}
        self._relations: dict[Oid, bytes] = {}     # as last sent: most are sent again without a change
        self._transaction = 0                      # ascending number of the open transaction
        self._changes: dict[Oid, tuple[int, int]] = {}   # the transaction a table last changed in, and how often
        self._told: dict[Oid, TableSchema] = {}    # by our event trigger, last
        self._dropped: set[Oid] = set(dropped)
        # By name: the transaction in which a table last gave it up, and the first seq that is free there.
        self._given_up: dict[tuple[str, str], tuple[int, int]] = {}

    def set_keys(self, oid: Oid, names: Iterable[str]) -> None:
        """From the next relation message on. For identity FULL only."""
        self._keys[oid] = frozenset(names)
        self._relations.pop(oid, None)

    def begin(self, begin: Begin) -> None:
        """Opens a streamed transaction, now that it has committed."""
        if self.open is not None:
            raise Malformed("streamed transaction inside of another")
        self.open = begin
        self._transaction += 1

    def end(self) -> None:
        """Closes what `begin` opened."""
        self.open = None

    def decode(self, chunk: Chunk, *, streamed: bool = False) -> Decoded:
        """`streamed`: messages of one block, with a transaction id behind their type byte, between begin and end."""
        return _Pass(self, chunk, streamed).run()

    def _read_relation(self, data: bytes) -> TableSchema | None:
        """The table as it is from now on; None if nothing changed."""
        oid = int.from_bytes(data[:4], "big")
        if self._relations.get(oid) == data:
            return None
        previous = self.tables.get(oid)
        table = described(read_relation(data).table(self._keys.get(oid), self._type_names),
                          self._told.get(oid, previous))
        self._relations[oid] = data
        table = _keyed(table, previous)
        return None if previous is not None and previous.id == table.id else table

    def _next_seq(self, oid: Oid, transaction: int) -> int:
        """For a change that is no row."""
        seq = self._carried(oid, transaction)
        self._changes[oid] = transaction, seq + 1
        return seq

    def _carried(self, oid: Oid, transaction: int) -> int:
        last, count = self._changes.get(oid, (-1, 0))
        return count if last == transaction else 0

    def _holders(self, table: TableSchema) -> list[Oid]:
        """Other tables that have its name, as far as the stream has told."""
        return [oid for oid, other in self.tables.items()
                if oid != table.oid and oid not in self._dropped and _name(other) == _name(table)]

    def _give_up(self, table: TableSchema, transaction: int) -> None:
        """Its name; what comes next under it in this transaction stands behind all that the table had there."""
        free = max(self._free(table, transaction), self._carried(table.oid, transaction))
        self._given_up[_name(table)] = transaction, free

    def _take_name(self, table: TableSchema, transaction: int) -> None:
        count = self._carried(table.oid, transaction)
        if (free := self._free(table, transaction)) > count:
            self._changes[table.oid] = transaction, free

    def _free(self, table: TableSchema, transaction: int) -> int:
        last, seq = self._given_up.get(_name(table), (-1, 0))
        return seq if last == transaction else 0


def _name(table: TableSchema) -> tuple[str, str]:
    return table.schema, table.name


def _keyed(table: TableSchema, previous: TableSchema | None) -> TableSchema:
    """A table that has lost its key, or whose identity is nothing, keeps the key that it had as long as its columns are
    there: its rows are told by it until it is taken out of the stream, and copied when it comes back [S12]."""
    if previous is None or table.keys or not previous.keys or table.identity == IDENTITY_FULL:
        return table
    places = {previous.columns[i].name: previous.columns[i].key_place for i in previous.keys}
    if not places.keys() <= {column.name for column in table.columns}:
        return table
    columns = tuple(msgspec.structs.replace(column, is_key=column.name in places, key_place=places.get(column.name, 0))
                    for column in table.columns)
    return msgspec.structs.replace(table, columns=columns)


class _Pass:
    """One call of `decode`: vectors over all messages of the chunk."""

    def __init__(self, decoder: Decoder, chunk: Chunk, streamed: bool) -> None:
        self.decoder = decoder
        self.chunk = chunk
        self.view = View(chunk.buffer)
        self.at = chunk.starts[:-1] + HEADER_BYTES
        self.ends = chunk.starts[1:]
        self.skip = 5 if streamed else 1           # from the type byte to what follows
        self.streamed = streamed
        self.items: list[Item] = []

    def run(self) -> Decoded:
        if not self.chunk.count:
            return Decoded([], np.zeros(0, np.int64), 0)
        sizes = self.ends - self.chunk.starts[:-1]
        if int(sizes.min()) <= HEADER_BYTES or not (self.view.octets[self.chunk.starts[:-1]] == ord("w")).all():
            raise Malformed("message that is not XLogData, or empty")
        self.types = self.view.octets[self.at]
        commits, end_lsn = self._transactions(sizes)
        self._rows_of(sizes)
        done = 0
        for i in np.flatnonzero(self.rare).tolist():
            done = self._rare(i, done)
        self._flush(done, self.chunk.count)
        self._leave()
        return Decoded(self.items, commits, end_lsn)

    def _transactions(self, sizes: Ints) -> tuple[Ints, Lsn]:
        """Finds begins and commits and gives every message the number of its transaction."""
        begins, commits = self.types == _BEGIN, self.types == _COMMIT
        borders = begins | commits
        order = begins[borders]
        was_open = self.decoder.open is not None
        if len(order) and (self.streamed or order[0] == was_open or not (order[1:] ^ order[:-1]).all()):
            raise Malformed("begin inside of a transaction, or commit outside of one")
        if not ((sizes == _BEGIN_BYTES) | ~begins).all() or not ((sizes == _COMMIT_BYTES) | ~commits).all():
            raise Malformed("begin or commit message of strange length")
        first, last = self.at[begins], self.at[commits]
        carried = self.decoder.open or Begin(0, 0, 0)
        i8 = self.view.i8
        self.commit_lsn = np.concatenate([[carried.commit_lsn], i8[first + 1]]).astype(np.int64)
        self.commit_ts = np.concatenate([[carried.commit_ts], i8[first + 9] + POSTGRES_EPOCH_US]).astype(np.int64)
        self.xid = np.concatenate([[carried.xid], self.view.u4[first + 17]]).astype(np.uint32)
        self.transaction = np.cumsum(begins)           # 0: the one that was open before
        self.inside = self.transaction - np.cumsum(commits) + was_open == 1
        self.ends_open = bool(self.inside[-1])
        self.rare = ~(_IS_ROW[self.types] | borders)
        return i8[last + 2].astype(np.int64), int(i8[last[-1] + 10]) if len(last) else 0

    def _rows_of(self, sizes: Ints) -> None:
        self.rows = np.flatnonzero(_IS_ROW[self.types])
        if not len(self.rows):
            return
        if int(sizes[self.rows].min()) < _ROW_BYTES_MIN + self.skip - 1 or not self.inside[self.rows].all():
            raise Malformed("row message cut short, or outside of a transaction")
        self.oids = self.view.u4[self.at[self.rows] + self.skip].astype(np.int64)

    def _leave(self) -> None:
        decoder = self.decoder
        if len(self.commit_lsn) > 1:
            decoder._transaction += len(self.commit_lsn) - 1
        if not self.streamed:
            decoder.open = self._begin(len(self.types) - 1) if self.ends_open else None

    def _begin(self, message: int) -> Begin:
        if not self.inside[message]:
            raise Malformed("change outside of a transaction")
        n = int(self.transaction[message])
        return Begin(int(self.commit_lsn[n]), int(self.commit_ts[n]), int(self.xid[n]))

    def _rare(self, i: int, done: int) -> int:
        """A message that is no row; rows before it are given first where it is a barrier. Returns what is done."""
        kind = self.types[i]
        data = self.chunk.buffer[self.at[i] + (1 if kind == _ORIGIN else self.skip):self.ends[i]]
        if kind == _RELATION:
            return self._relation(i, data, done)
        if kind == _TRUNCATE:
            self._flush(done, i)
            self._truncate(i, data)
            return i
        if kind == _MESSAGE:
            return self._message(i, data, done)
        if kind == _TYPE:
            oid, name = read_type(data)
            self.decoder._type_names[oid] = name
        elif kind != _ORIGIN:
            raise Malformed(f"message of type {chr(int(kind))!r}")
        return done

    def _relation(self, i: int, data: bytes, done: int) -> int:
        table = self.decoder._read_relation(data)
        if table is None:
            return done
        self._flush(done, i)                       # rows before it are of the schema before it
        self._change(i, table)
        return i

    def _change(self, i: int, table: TableSchema) -> None:
        """The table is another from here on."""
        decoder, number = self.decoder, self._number(i)
        previous = decoder.tables.get(table.oid)
        is_named = previous is None or _name(previous) != _name(table)
        if is_named:
            self._evict(i, table)
            decoder._take_name(table, number)
        decoder.tables[table.oid] = table
        seq = -1 if previous is None else decoder._next_seq(table.oid, number)
        if is_named and previous is not None:
            decoder._give_up(previous, number)
        self.items.append(Relation(table, previous, self._begin(i), seq))

    def _evict(self, i: int, table: TableSchema) -> None:
        """A name is of one table at a time: whoever had this one has lost it, whether that was told or not."""
        decoder, number = self.decoder, self._number(i)
        if others := decoder._holders(table):
            evicted = tuple(Truncated(oid, decoder._next_seq(oid, number)) for oid in others)
            for oid in others:
                decoder._give_up(decoder.tables[oid], number)
            self.items.append(Evicted(evicted, self._begin(i)))

    def _number(self, i: int) -> int:
        return self.decoder._transaction + int(self.transaction[i])

    def _truncate(self, i: int, data: bytes) -> None:
        oids, flags = read_truncate(data)
        begin, number = self._begin(i), self._number(i)
        tables = tuple(Truncated(oid, self.decoder._next_seq(oid, number)) for oid in oids)
        self.items.append(Truncate(tables, bool(flags & TRUNCATE_CASCADE), bool(flags & TRUNCATE_RESTART), begin,
                                   self._lsn(i)))

    def _message(self, i: int, data: bytes, done: int) -> int:
        prefix, content, lsn, transactional = read_message(data)
        if not prefix.startswith(self.decoder._prefix):
            return done
        self._flush(done, i)
        self.items.append(Message(prefix, content, lsn, self._begin(i) if transactional else None))
        if transactional:
            told, said = table_told(content), life_told(content)
            if told is not None:
                self._told(i, told)
            elif said is not None:
                self._life(i, said)
        return i

    def _life(self, i: int, said: LifeTold) -> None:
        """A table was dropped: its name is free, behind the drop. Or it is back, under the name that it had."""
        decoder = self.decoder
        table = decoder.tables.get(said.oid)
        if table is None:
            return
        if said.is_drop:
            decoder._next_seq(said.oid, self._number(i))       # of the drop itself
            decoder._give_up(table, self._number(i))
            decoder._dropped.add(said.oid)
        else:
            decoder._dropped.discard(said.oid)

    def _told(self, i: int, table: TableSchema) -> None:
        """Our event trigger tells a change where it happens; a relation message would tell it before the next row."""
        if table.identity == IDENTITY_FULL:
            self.decoder.set_keys(table.oid, [table.columns[key].name for key in table.keys])
        previous = self.decoder.tables.get(table.oid)
        if not table.name:
            return
        table = _keyed(table, previous)
        self.decoder._told[table.oid] = table
        if previous is None:
            return
        if previous.id == table.id:
            self.decoder.tables[table.oid] = table
            if _facts(previous) != _facts(table):
                self.items.append(Described(table, self._begin(i)))
            return
        self.decoder._relations.pop(table.oid, None)   # what comes next is compared with what was told
        self._change(i, table)

    def _lsn(self, i: int) -> Lsn:
        return int(self.view.i8[self.at[i] - HEADER_BYTES + 1])

    def _flush(self, first: int, last: int) -> None:
        """The rows among messages [first, last) as one batch per table."""
        low, high = np.searchsorted(self.rows, [first, last])
        if low == high:
            return
        oids = self.oids[low:high]
        if (oids == oids[0]).all():
            self._run(int(oids[0]), self.rows[low:high])
            return
        found, place = np.unique(oids, return_inverse=True)
        order = np.argsort(place, kind="stable")
        borders = np.cumsum(np.bincount(place))[:-1]
        for oid, rows in zip(found.tolist(), np.split(self.rows[low:high][order], borders), strict=True):
            self._run(oid, rows)

    def _run(self, oid: Oid, rows: Ints) -> None:
        table = self.decoder.tables.get(oid)
        if table is None:
            raise Malformed(f"row of relation {oid} before its relation message")
        at = self.at[rows]
        n = self.transaction[rows]
        vectors = Vectors(
            at=at + (self.skip + 4), ends=self.ends[rows], types=self.types[rows],
            lsn=self.view.i8[at - (HEADER_BYTES - 1)].astype(np.int64), commit_lsn=self.commit_lsn[n],
            commit_ts=self.commit_ts[n], xid=self.xid[n], transaction=n)
        base = self.decoder._transaction
        run = build(self.view, table, vectors, self.decoder._carried(oid, base + int(n[0])))
        self.decoder._changes[oid] = base + int(n[-1]), run.changes
        self.items.append(Rows(table, run.before, run.batch))


def _facts(table: TableSchema) -> tuple[ColumnFacts | None, ...]:
    return tuple(column.facts for column in table.columns)


__all__ = ["Begin", "Decoded", "Decoder", "Evicted", "Item", "Message", "Relation", "Rows", "Truncate", "Truncated"]
