"""The demo's changefeed: the shop's tables in topics as debezium-json, judged message by message.

It is made while the shop sells and judged when the shop is closed, so that whatever else is killed meanwhile hits it,
too. Without Java there is no Spark: that is said, and the demo goes on without it.
"""

from __future__ import annotations

import time
from typing import Any

from millrace.cli.client import path_to
from millrace.cli.demo_shop import SOURCE, Say
from millrace.cli.exits import CommandFailed
from millrace.cli.local import LocalCluster
from millrace.cli.prove_check import check_messages
from millrace.cli.prove_messages import READ, Told
from millrace.cli.prove_reading import read_messages
from millrace.model.tables import Lsn, parse_lsn

FEED = "demo"
SINK = "kafka:?format=debezium-json&partitions=3"
DELIVERED_S = 90.0                     # a cold Spark on a small machine


class FeedTour:
    """`missing`: why there is no Spark here; then nothing is done, and that is said."""

    def __init__(self, cluster: LocalCluster, say: Say, missing: str) -> None:
        self._cluster, self._say, self._missing = cluster, say, missing

    def begin(self) -> None:
        if self._missing:
            self._say(f"  [yellow]no changefeed[/]: {self._missing}", soft_wrap=True)
            return
        body = {"id": FEED, "source": SOURCE, "tables": ["public.*"], "sink": SINK}
        self._cluster.ask("POST", "/api/v2/changefeeds", body, kind="capture")
        self._say(f"  millrace changefeed create {FEED} --source {SOURCE} --tables 'public.*' --sink '{SINK}'",
                  soft_wrap=True)

    def close(self, last: Lsn, tables: dict[str, Any]) -> dict[str, Any]:
        """`tables`: what the log has of each, judged already. Every change in it must be a message, once."""
        if self._missing:
            return {"skipped": self._missing, "ok": True}
        began = time.monotonic()
        try:
            self._cluster.wait_for(lambda: self._checkpoint() >= last, "the changefeed's last messages", DELIVERED_S)
        except RuntimeError as error:
            raise CommandFailed(str(error)) from None
        told = read_messages(self._cluster.bootstrap, f"{SOURCE}.")
        findings = check_messages(told)
        facts = {name: {"changes": found["changes"], "messages": _changes(told, name)}
                 for name, found in tables.items()}
        lost = sum(abs(one["changes"] - one["messages"]) for one in facts.values())
        for name, one in facts.items():
            self._say(f"  topic {SOURCE}.public.{name}: {one['messages']:,} messages for {one['changes']:,} changes")
        self._say(f"  delivered {time.monotonic() - began:.1f} s after the last change: [bold green]{lost} lost[/], "
                  f"{len(findings)} doubled or out of order")
        for finding in findings[:5]:
            self._say(f"  {finding}", markup=False, soft_wrap=True)
        return {"tables": facts, "lost": lost, "findings": [str(one) for one in findings[:20]],
                "ok": not lost and not findings}

    def _checkpoint(self) -> Lsn:
        found = self._cluster.ask("GET", path_to("changefeeds", FEED), kind="capture")
        if found["state"] == "failed":
            raise RuntimeError(f"{FEED}: {found['why']}")
        return parse_lsn(found["checkpoint"]) if found["checkpoint"] is not None else 0


def _changes(told: Told, table: str) -> int:
    return sum(seen.kind == "row" and seen.op != READ and seen.table[1] == table
               for messages in told.values() for seen in messages)
