"""The verdict of the proof on one changefeed, and whether flaws planted in the same messages are found.

    messages, history, rows ──▶ check: all of it ──no findings──▶ plants ──▶ check: what belongs to the flaw's topic

In: values. Out: what was found, and of each planted flaw whether it was.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from millrace.cli.prove_check import Rows, check, counts
from millrace.cli.prove_findings import Finding
from millrace.cli.prove_messages import Happened, Name, Told
from millrace.cli.prove_plants import plants
from millrace.model.tables import Oid

SHOWN = 20                             # findings that are told


def judge(messages: Told, history: list[Happened], rows: Rows, seed: int) -> dict[str, Any]:
    findings = check(messages, history, rows)
    planted: dict[str, bool | None] = {}
    parts = Parts(messages, history, rows)
    for plant in plants(messages, rows.keys(), random.Random(seed)) if not findings else ():
        found = None if plant.told is None else check(*parts.of(plant.told))
        planted[plant.name] = None if found is None else any(one.harm == plant.harm for one in found)
    changes = sum(one.told != "apart" for one in history)
    return {"changes": changes, "messages": dict(counts(messages)), "tables": len(rows),
            "rows": sum(map(len, rows.values())), "findings": len(findings), "found": _shown(findings),
            "planted": planted, "ok": not findings and False not in planted.values()}


def together(found: list[bool | None]) -> bool | None:
    """Of a flaw planted in several changefeeds; None: nowhere was anything to plant it in."""
    return None if found.count(None) == len(found) else False not in found


def _shown(findings: list[Finding]) -> list[str]:
    """Some of every harm."""
    by_harm: dict[str, list[str]] = {}
    for one in findings:
        by_harm.setdefault(one.harm, []).append(str(one))
    return [text for texts in by_harm.values() for text in texts[:SHOWN // len(by_harm) + 1]]


class Parts:
    """A run cut into what can be judged by itself: topics, and the tables in them under all their names."""

    def __init__(self, told: Told, history: list[Happened], rows: Rows) -> None:
        self._told, self._rows = told, rows
        self._tables: dict[str, set[Name]] = defaultdict(set)          # by topic
        self._names: dict[Oid, set[Name]] = defaultdict(set)
        self._history: dict[Oid, list[Happened]] = defaultdict(list)
        for (topic, _), messages in told.items():
            self._tables[topic] |= {seen.table for seen in messages if seen.table != ("", "")}
        for one in history:
            self._names[one.oid].add(one.table)
            self._history[one.oid].append(one)

    def of(self, told: Told) -> tuple[Told, list[Happened], Rows]:
        """What belongs to the only topic in which `told` is another than the run's own."""
        topic = next(where[0] for where, messages in told.items() if messages is not self._told[where])
        topics, names = {topic}, set(self._tables[topic])
        while True:
            oids = {oid for oid, known in self._names.items() if known & names}
            names |= {name for oid in oids for name in self._names[oid]}
            wider = {topic for topic, tables in self._tables.items() if tables & names} | topics
            names |= {name for topic in wider for name in self._tables[topic]}
            if wider == topics:
                break
            topics = wider
        return ({where: messages for where, messages in told.items() if where[0] in topics},
                [one for oid in sorted(oids) for one in self._history[oid]],
                {name: rows for name, rows in self._rows.items() if name in names})
