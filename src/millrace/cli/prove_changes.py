"""Changes of the proof's shop, each a statement or a few, by chance: what an application does to single tables.

In: a connection inside a transaction. Out: rows inserted, updated with and without their large values, moved to other
keys and partitions, deleted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from millrace.cli.prove_shop import HOSTILE, SMALL, small

KEYS = 200                             # few: writers meet each other's rows
LARGE_BYTES = 9_000                    # stored out of line: an update that leaves it alone does not send it

Step = Callable[[], None]


class Changes:
    def __init__(self, db: psycopg.Connection[Any], seed: int, *, number: int, joined: Sequence[str] = ()) -> None:
        """`joined`: tables that came later; it may grow."""
        self.db, self.rng, self.number = db, random.Random(seed * 1000 + number), number
        self.steps, self.joined = 0, joined
        self._changes: list[tuple[int, Step]] = [
            (12, self.customers), (10, self.products), (8, self.describe), (14, self.orders), (6, self.order_lines),
            (6, self.move_key), (3, self.swap_keys), (4, self.same_key), (5, self.carts), (5, self.stock),
            (4, self.visits), (5, self.sessions), (6, self.campaigns), (6, self.sales), (5, self.hostile),
            (6, self.small), (4, self.gauges), (6, self.late)]

    def change(self) -> None:
        weights, changes = zip(*self._changes, strict=True)
        self.rng.choices(changes, weights)[0]()

    def key(self) -> int:
        return self.rng.randrange(1, KEYS)

    def large(self) -> str:
        return f"{self.rng.randrange(1 << 60):x}." * (LARGE_BYTES // 15)

    def _one_of(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        text, values = self.rng.choice(statements)
        self.db.execute(text, values)

    def customers(self) -> None:
        self._one_of(
            ("INSERT INTO customers VALUES (%s, %s, NULL, '2026-11-16', true) ON CONFLICT DO NOTHING",
             (self.key(), f"customer {self.steps} \"ü\"\n")),
            ("UPDATE customers SET email = %s WHERE id = %s", (f"c{self.steps}@example.org", self.key())),
            ("DELETE FROM customers WHERE id = %s", (self.key(),)))

    def products(self) -> None:
        self._one_of(
            ("INSERT INTO products VALUES (%s, 'p', %s, ARRAY['a', NULL, 'b,c'], %s, %s) ON CONFLICT DO NOTHING",
             (self.key(), self.rng.randrange(10_000) / 100, b"\x00\xff" * 3, self.large())),
            ("DELETE FROM products WHERE id = %s", (self.key(),)))

    def describe(self) -> None:
        """Mostly without the large value: it is not sent."""
        self._one_of(
            *[("UPDATE products SET price = price + 0.01 WHERE id BETWEEN %s AND %s", (k := self.key(), k + 3))] * 3,
            ("UPDATE products SET description = %s WHERE id = %s", (self.large(), self.key())))

    def orders(self) -> None:
        self._one_of(
            ("INSERT INTO orders VALUES (%s, %s, 'new', %s, %s, clock_timestamp(), %s) ON CONFLICT DO NOTHING",
             (self.key() * 3, self.key(), self.rng.randrange(99_999) / 100, self.rng.random(),
              f'{{"note": "n{self.steps}", "gift": null}}')),
            ("UPDATE orders SET state = 'paid', total = total + 1 WHERE id BETWEEN %s AND %s",
             (k := self.key() * 3, k + 9)),
            ("DELETE FROM orders WHERE id = %s", (self.key() * 3,)))

    def order_lines(self) -> None:
        self._one_of(
            ("INSERT INTO order_lines SELECT %s, g, g * 7, g FROM generate_series(1, 4) g ON CONFLICT DO NOTHING",
             (self.key(),)),
            ("UPDATE order_lines SET quantity = quantity + 1 WHERE order_id = %s", (self.key(),)),
            ("UPDATE order_lines SET line = line + 100 WHERE order_id = %s AND line < 100", (self.key(),)),
            ("DELETE FROM order_lines WHERE order_id = %s", (self.key(),)))

    def move_key(self) -> None:
        """With or without the large value."""
        large = self.large() if self.rng.random() < 0.3 else None
        self.db.execute("UPDATE products SET id = %s, description = coalesce(%s, description) WHERE id = %s AND NOT "
                        "EXISTS (SELECT FROM products WHERE id = %s)", (new := self.key(), large, self.key(), new))

    def swap_keys(self) -> None:
        a, b = sorted((self.key(), self.key()))
        for new, old in ((-1 - self.number, a), (a, b), (b, -1 - self.number)):
            self.db.execute("UPDATE products SET id = %s WHERE id = %s", (new, old))

    def same_key(self) -> None:
        k = self.key()
        self.db.execute("DELETE FROM customers WHERE id = %s", (k,))
        for name in ("one", "two"):
            self.db.execute("INSERT INTO customers VALUES (%s, %s)", (k, name))
            self.db.execute("UPDATE customers SET vip = true WHERE id = %s", (k,))
            if name == "one":
                self.db.execute("DELETE FROM customers WHERE id = %s", (k,))

    def carts(self) -> None:
        self._one_of(
            ("INSERT INTO carts VALUES (%s, 'v', %s) ON CONFLICT DO NOTHING", (self.key(), self.large())),
            ("UPDATE carts SET v = %s WHERE id = %s", (f"v{self.steps}", self.key())),
            ("DELETE FROM carts WHERE id = %s", (self.key(),)))

    def stock(self) -> None:
        code = f"code {self.key()}"
        self._one_of(
            ("INSERT INTO stock VALUES (%s, %s, 1) ON CONFLICT (code) DO UPDATE SET id = excluded.id",
             (self.steps, code)),
            ("UPDATE stock SET amount = amount + 1 WHERE code = %s", (code,)),
            ("UPDATE stock SET code = code || '+' WHERE code = %s", (code,)),
            ("DELETE FROM stock WHERE code = %s", (code,)))

    def visits(self) -> None:
        """Rows that are equal to each other; one of them is meant."""
        self._one_of(
            ("INSERT INTO visits VALUES (%s, 't'), (1, NULL)", (self.rng.randrange(5),)),
            ("UPDATE visits SET t = %s WHERE ctid = (SELECT ctid FROM visits WHERE v = %s LIMIT 1)",
             (f"u{self.steps}", self.rng.randrange(5))),
            ("DELETE FROM visits WHERE ctid = (SELECT ctid FROM visits WHERE v = %s LIMIT 1)",
             (self.rng.randrange(5),)))

    def sessions(self) -> None:
        self.db.execute("INSERT INTO sessions VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                        (self.key(), f"v{self.steps}"))

    def campaigns(self) -> None:
        self._one_of(
            ("INSERT INTO campaigns (id, a, big) VALUES (%s, 'a', %s) ON CONFLICT (id) DO UPDATE SET a = 'again'",
             (self.key(), self.large())),
            ("DELETE FROM campaigns WHERE id = %s", (self.key(),)))

    def sales(self) -> None:
        """Also rows that move to the other partition."""
        region, k = self.rng.choice(["north", "south"]), self.key()
        self._one_of(
            ("INSERT INTO sales VALUES (%s, %s, 'v') ON CONFLICT DO NOTHING", (k, region)),
            ("UPDATE sales SET v = %s WHERE id = %s", (f"v{self.steps}", k)),
            ("UPDATE sales SET region = %s WHERE id = %s AND (SELECT count(*) FROM sales WHERE id = %s) = 1",
             (region, k, k)),
            ("DELETE FROM sales WHERE id = %s", (k,)))

    def hostile(self) -> None:
        schema, table, key, value = self.rng.choice(HOSTILE)
        self.put(sql.Identifier(schema, table), key, value)

    def small(self) -> None:
        self.put(sql.Identifier(small(self.rng.randrange(SMALL))), "id", "v")

    def gauges(self) -> None:
        """Values as text without a type: the column may have any."""
        self._one_of(
            ("INSERT INTO gauges VALUES (%s, 'v', %s) ON CONFLICT (id) DO UPDATE SET v = 'again'",
             (self.key(), str(self.steps))),
            ("UPDATE gauges SET amount = %s WHERE id = %s", (str(self.steps), self.key())),
            ("DELETE FROM gauges WHERE id = %s", (self.key(),)))

    def late(self) -> None:
        if self.joined:
            self.put(sql.Identifier(self.rng.choice(self.joined)), "id", "v")

    def put(self, table: sql.Identifier, key: str, value: str) -> None:
        """Names may hold what looks like a parameter: values are written out."""
        names = {"table": table, "key": sql.Identifier(key), "value": sql.Identifier(value)}
        if self.rng.random() < 0.2:
            self.db.execute(sql.SQL("DELETE FROM {table} WHERE {key} = {id}").format(id=self.key(), **names))
        self.db.execute(sql.SQL("INSERT INTO {table} VALUES ({id}, {text}) ON CONFLICT ({key}) DO UPDATE SET {value} = "
                                "excluded.{value}").format(id=self.key(), text=f"v{self.steps}", **names))
