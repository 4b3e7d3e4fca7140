"""The demo's first part: a shop database arrives in the log, and the capture that reads it is killed with kill -9."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from millrace.cli.client import Api
from millrace.cli.exits import CommandFailed
from millrace.cli.local import LocalCluster
from millrace.cli.shop import TABLES, Shop, last_row, rebuilt
from millrace.cli.source import path_of
from millrace.log.client import PlainClient
from millrace.model.tables import Lsn, lsn_text, parse_lsn

SOURCE = "shop"
STEADY_S = 2.0
COPIED_S = 60.0
TAKE_OVER_S_MAX = 10.0

Say = Callable[..., None]


class ShopTour:
    """One run through the shop: begin, kill, close."""

    def __init__(self, cluster: LocalCluster, shop: Shop, client: PlainClient, say: Say) -> None:
        self._cluster, self._shop, self._client, self._say = cluster, shop, client, say
        self.facts: dict[str, Any] = {}
        self.last: Lsn = 0        # all changes are at or below it, when the shop is closed

    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = Api.of(self._cluster.dir, "capture").ask("GET", path_of(SOURCE))
        return found

    def begin(self) -> None:
        """Writers first: the copy has to meet a database that changes."""
        self._shop.open()
        began = time.monotonic()
        url = self._shop.url(self._cluster.secrets_dir)
        body = {"name": SOURCE, "url": url, "tables": ["public.*"]}
        Api.of(self._cluster.dir, "capture").ask("POST", "/api/v2/sources", body)
        self._say(f"  millrace source create {SOURCE} --url {url}", soft_wrap=True)
        self._cluster.wait_for(self._is_copied, "the first copy of the shop", COPIED_S)
        self.facts["copied_s"] = round(time.monotonic() - began, 3)
        copied = sum(int(copy["rows"]) for copy in self.source()["copies"])
        self._say(f"  {copied:,} rows of {len(TABLES)} tables copied while the shop was selling, streaming after "
                  f"{self.facts['copied_s']:.1f} s")

    def kill_the_reader(self) -> None:
        time.sleep(STEADY_S)
        before = self.source()
        counts = ", ".join(f"{t['table']} {int(t['rows']):,}" for t in before["tables"])
        self._say(f"  changes in the log: {counts}; the newest row of orders:")
        change = last_row(self._client, SOURCE, "orders")
        self._say(f"    {_one_line(change)}", soft_wrap=True, markup=False)
        pid = self._cluster.kill_capture(before["capture"])
        killed_at = time.monotonic()
        self._say(f"  [red]kill -9 {pid}[/]: capture {before['capture']}, coordinator and reader of the shop")
        target = self._shop.last_lsn()
        self._cluster.wait_for(lambda: self._has_passed(before["epoch"], target), "another reader of the shop")
        took_s = time.monotonic() - killed_at
        after = self.source()
        self._say(f"  capture {after['capture']} reads on under epoch {after['epoch']}, what the shop wrote meanwhile "
                  f"is in the log after [bold green]{took_s:.2f} s[/]")
        self.facts |= {"capture_killed": before["capture"], "read_on_by": after["capture"],
                       "take_over_s": round(took_s, 3)}

    def close(self) -> dict[str, Any]:
        """No more customers; then the log must tell the same tables as the database."""
        self._shop.close()
        target = self.last = self._shop.last_lsn()
        self._cluster.wait_for(lambda: parse_lsn(self.source()["resolved"]) >= target, "the shop's last changes")
        told = rebuilt(self._client, SOURCE)
        tables = {}
        for name in TABLES:
            real, log = self._shop.rows(name), told[name]
            lost = sum(log.rows.get(key) != row for key, row in real.items())
            tables[name] = {"rows": len(real), "copied": log.copied, "changes": log.changes, "differ": lost,
                            "too_many": len(log.rows.keys() - real.keys()), "doubled": log.doubled}
            self._say(f"  {name}: {log.copied:,} rows copied, {log.changes:,} changes; rebuilt from the log: "
                      f"{len(log.rows):,} rows, [bold green]{lost} differ[/], {log.doubled} changes doubled")
        harm = sum(t["differ"] + t["too_many"] + t["doubled"] for t in tables.values())
        self.facts |= {"transactions": self._shop.transactions, "tables": tables,
                       "ok": harm == 0 and self.facts["take_over_s"] <= TAKE_OVER_S_MAX}
        return self.facts

    def _is_copied(self) -> bool:
        found = self.source()
        if found["state"] == "failed":
            raise RuntimeError(f"{SOURCE}: {found['why']}")
        return found["state"] == "streaming" and all(copy["state"] == "done" for copy in found["copies"])

    def _has_passed(self, epoch: int, target: int) -> bool:
        found = self.source()
        return found["epoch"] > epoch and found["resolved"] is not None and parse_lsn(found["resolved"]) >= target


@contextmanager
def shop_starting() -> Iterator[Future[Shop]]:
    """The server and its tables are made while the cluster starts; whatever happens, it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="millrace-shop-") as directory, ThreadPoolExecutor(1) as pool:
        os.chmod(directory, 0o755)  # noqa: S103 - started by root, the server runs as another user
        shop = Shop(os.path.join(directory, "postgres"))
        starting = pool.submit(shop.__enter__)
        try:
            yield starting
        finally:
            wait([starting])
            shop.__exit__(None, None, None)


@contextmanager
def follow_the_shop(cluster: LocalCluster, starting: Future[Shop], say: Say, then: Callable[[], None]
                    ) -> Iterator[ShopTour]:
    """The shop is open until its tour is closed, so that whatever else is killed meanwhile hits it, too. `then`: done
    when its changes arrive, before anything is killed."""
    shop = starting.result()
    say(f"  PostgreSQL {shop.server.installation.version[0]} with a shop of {len(TABLES)} tables on port "
        f"{shop.server.port}")
    with PlainClient(cluster.bootstrap.split(","), key=cluster.log_key) as client:
        tour = ShopTour(cluster, shop, client, say)
        try:
            tour.begin()
            then()
            tour.kill_the_reader()
        except RuntimeError as error:
            raise CommandFailed(str(error)) from None
        yield tour


def _one_line(change: dict[str, Any]) -> str:
    shown = {name.removeprefix("a:"): value for name, value in change.items() if name.startswith("a:")}
    values = ", ".join(f"{name}={value}" for name, value in shown.items())
    return f"{('insert', 'update')[change['op']]} at {lsn_text(change['commit_lsn'])}: {values}"
