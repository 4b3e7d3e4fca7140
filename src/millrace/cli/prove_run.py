"""One run of the end-to-end proof, for the command and for tests.

    shop ◀─ writers      reader ─▶ log ─▶ dispatchers on Spark ─▶ topics ─▶ judge ◀─ witness, rows of the shop
      └────────────────────▲────────▲────────────▲─── strikes

In: how long, a seed. Out: what was done, what was found, and whether flaws planted in the same messages are found.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from millrace.cli.prove_check import Finding, Rows, check, counts
from millrace.cli.prove_messages import Happened, Told
from millrace.cli.prove_plants import plants
from millrace.cli.prove_reading import read_messages
from millrace.cli.prove_shop import all_rows
from millrace.cli.prove_site import SESSION_S, SOURCE, ProofSite, proof_site
from millrace.cli.prove_strikes import Strikes, Times, told
from millrace.cli.prove_witness import Witness, last_lsn
from millrace.cli.prove_writers import Writers
from millrace.model.tables import Lsn

CREATE_S = 240.0                       # a cold Spark on a busy machine
DELIVER_S = 300.0
WRITERS = 2
PAUSE_S = 0.02                         # between a writer's transactions
TIMES = Times(between_s=(1.0, 3.0), pause_s=(SESSION_S + 1.0, SESSION_S + 3.0), wait_s=5.0)
EACH_S = 120.0                         # to strike every kind once more: somebody may be hard to meet
SHOWN = 20                             # findings that are told

Say = Callable[[str], None]


def run(seconds: float, seed: int, say: Say, *, strikes: bool = True, each: int = 0, logs: str = "") -> dict[str, Any]:
    """Longer than `seconds` if need be, until every kind of process was struck `each` times."""
    began = time.monotonic()
    say(f"three brokers, three captures, Spark, a shop in PostgreSQL; seed {seed}")
    with proof_site(logs=logs) as site:
        site.create(CREATE_S)
        site.wait_placed(CREATE_S)
        say(f"the changefeed works after {time.monotonic() - began:.1f} s")
        with Witness(site.url) as witness:
            facts, upto = _live(site, seconds, seed, say, each if strikes else None)
            facts["delivered_s"] = round(site.wait_delivered(upto, DELIVER_S), 1)
            say(f"everything delivered {facts['delivered_s']:.1f} s after the last change")
            result = verdict(site, witness, upto, seed)
            _tell(result, say)         # before the cluster is taken down: a large one takes its time
    return {"seed": seed, "seconds": seconds, **facts, **result, "took_s": round(time.monotonic() - began, 1)}


def _live(site: ProofSite, seconds: float, seed: int, say: Say, each: int | None) -> tuple[dict[str, Any], Lsn]:
    """The shop writes and processes are hurt, unless `each` is None; then the end of what was written."""
    began = time.monotonic()

    def timed(text: str) -> None:
        say(f"{time.monotonic() - began:6.1f} s  {text}")

    with Writers(site.url, seed=seed, count=WRITERS, pause_s=PAUSE_S) as writers:
        nemesis = Strikes(site.victims, seed, TIMES, timed)
        if each is not None:
            with nemesis:
                time.sleep(seconds)
                nemesis.wait_for(each, EACH_S * each)
        else:
            time.sleep(seconds)
        written = writers.stop()
    upto = last_lsn(site.url)
    say(f"killed + paused: {told(nemesis.by_kind())}")
    say(f"transactions: {dict(written)}")
    return {"strikes": nemesis.by_kind(), "missed": dict(nemesis.missed), "transactions": dict(written)}, upto


def verdict(site: ProofSite, witness: Witness, upto: Lsn, seed: int) -> dict[str, Any]:
    """When all is delivered and nobody writes."""
    messages = read_messages(site.cluster.bootstrap, f"{SOURCE}.")
    return judge(messages, witness.history(upto), all_rows(site.url), seed)


def judge(messages: Told, history: list[Happened], rows: Rows, seed: int) -> dict[str, Any]:
    """The verdict, and whether flaws planted in the same messages are found."""
    findings = check(messages, history, rows)
    planted: dict[str, bool | None] = {}
    for plant in plants(messages, rows.keys(), random.Random(seed)) if not findings else ():
        found = None if plant.told is None else check(plant.told, history, rows)
        planted[plant.name] = None if found is None else any(one.harm == plant.harm for one in found)
    return {"changes": len(history), "messages": dict(counts(messages)), "tables": len(rows),
            "rows": sum(map(len, rows.values())), "findings": len(findings), "found": _shown(findings),
            "planted": planted, "ok": not findings and False not in planted.values()}


def _tell(result: dict[str, Any], say: Say) -> None:
    say(f"{result['changes']:,} changes of {result['tables']} tables; messages: {result['messages']}")
    for text in result["found"]:
        say(text)
    for name, is_found in result["planted"].items():
        say(f"planted: {name}: {'found' if is_found else 'nothing to plant it in' if is_found is None else 'MISSED'}")
    say("nothing lost, nothing doubled, everything in order" if result["ok"] else
        f"{result['findings']} findings: this should not have happened")


def _shown(findings: list[Finding]) -> list[str]:
    """Some of every harm."""
    by_harm: dict[str, list[str]] = {}
    for one in findings:
        by_harm.setdefault(one.harm, []).append(str(one))
    return [text for texts in by_harm.values() for text in texts[:SHOWN // len(by_harm) + 1]]
