"""One run of the end-to-end proof, for the command and for tests.

    shop ◀─ writers, errands    reader ─▶ log ─▶ dispatchers on Spark ─▶ topics ─▶ judge ◀─ witness, rows of the shop
      └───────────────────────────▲────────▲────────────▲─── strikes

In: how long, a seed. Out: what was done, what was found, and whether flaws planted in the same messages are found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from millrace import limits
from millrace.cli.prove_errands import Errands
from millrace.cli.prove_judge import judge, together
from millrace.cli.prove_reading import read_messages
from millrace.cli.prove_shop import all_rows
from millrace.cli.prove_site import SESSION_S, ProofSite, proof_site
from millrace.cli.prove_strikes import Strikes, Times, told
from millrace.cli.prove_turns import Turns
from millrace.cli.prove_witness import Witness, last_lsn
from millrace.cli.prove_writers import Writers
from millrace.model.tables import Lsn

CREATE_S = 240.0                       # a cold Spark on a busy machine
DELIVER_S = 300.0
WRITERS = 2
PAUSE_S = 0.02                         # between a writer's transactions
TIMES = Times(between_s=(1.0, 3.0), pause_s=(SESSION_S + 1.0, SESSION_S + 3.0), wait_s=5.0)
LOOK_S = limits.SOURCE_POLL_S + 2.0     # until a source has looked at its tables once more
EACH_S = 120.0                         # to strike every kind once more: somebody may be hard to meet

Say = Callable[[str], None]


def run(seconds: float, seed: int, say: Say, *, strikes: bool = True, each: int = 0, logs: str = "") -> dict[str, Any]:
    """Longer than `seconds` if need be, until every kind of process was struck `each` times."""
    each = each if strikes else 0
    began = time.monotonic()
    say(f"three brokers, three captures, Spark, a shop in PostgreSQL, two changefeeds; seed {seed}")
    with proof_site(logs=logs) as site:
        site.create(CREATE_S)
        site.wait_placed(CREATE_S)
        say(f"the changefeeds work after {time.monotonic() - began:.1f} s")
        with Witness(site.url) as witness:
            facts, upto = _live(site, seconds, seed, say, each if strikes else None)
            result = verdict(site, witness, upto, seed)
            result["ok"] = result["ok"] and all(sum(hows.values()) >= each for hows in facts["strikes"].values())
            _tell(result, say)         # before the cluster is taken down: a large one takes its time
    return {"seed": seed, "seconds": seconds, **facts, **result, "took_s": round(time.monotonic() - began, 1)}


def _live(site: ProofSite, seconds: float, seed: int, say: Say, each: int | None) -> tuple[dict[str, Any], Lsn]:
    """The shop writes and processes are hurt, unless `each` is None; then everything comes to its end."""
    began = time.monotonic()

    def timed(text: str) -> None:
        say(f"{time.monotonic() - began:6.1f} s  {text}")

    nemesis = Strikes(site.victims, seed, TIMES, timed)
    with Writers(site.url, seed=seed, count=WRITERS, pause_s=PAUSE_S) as writers, ExitStack() as harm:
        errands = Errands(site.url, site.copy, seed, writers.joined, timed)
        turns = Turns(site.url, seed, timed)
        if each is not None:
            harm.enter_context(nemesis)
        with errands, turns:
            time.sleep(seconds)
        nemesis.wait_for(each or 0, EACH_S * (each or 0))
        harm.close()
        strikes_s = round(time.monotonic() - began, 1)
        written = writers.stop()
    say(f"killed + paused in {strikes_s:.0f} s: {told(nemesis.by_kind())}")
    say(f"transactions: {dict(written)}; asked: {dict(errands.counts)}; turned over: {dict(turns.counts)}")
    upto, delivered_s = _settled(site, max(errands.ended_at, turns.ended_at))
    say(f"everything delivered {delivered_s:.1f} s after the last change")
    return {"strikes": nemesis.by_kind(), "strikes_s": strikes_s, "missed": dict(nemesis.missed),
            "transactions": dict(written), "errands": dict(errands.counts), "turns": dict(turns.counts),
            "delivered_s": round(delivered_s, 1)}, upto


def _settled(site: ProofSite, errands_ended_at: float) -> tuple[Lsn, float]:
    """The end of what was written, when it is delivered, copies that are owed for it among it; how long it took."""
    began = time.monotonic()
    site.wait_read(last_lsn(site.url), DELIVER_S)
    # A partition that came is seen when the source looks at its tables, which nothing in the stream tells.
    time.sleep(max(0.0, errands_ended_at + LOOK_S - time.monotonic()))
    site.wait_copied(DELIVER_S)
    upto = last_lsn(site.url)
    site.wait_delivered(upto, DELIVER_S)
    return upto, time.monotonic() - began


def verdict(site: ProofSite, witness: Witness, upto: Lsn, seed: int) -> dict[str, Any]:
    """When all is delivered and nobody writes: of all changefeeds together."""
    history, rows = witness.history(upto), all_rows(site.url)
    judged = {}
    for feed in site.feeds:
        messages = read_messages(site.cluster.bootstrap, feed.prefix)
        judged[feed.name] = judge(messages, feed.history(history), feed.rows(rows), seed)
    planted = [one["planted"] for one in judged.values()]
    return {"feeds": judged,
            "found": [f"{name}: {text}" for name, one in judged.items() for text in one["found"]],
            "planted": {name: together([one.get(name) for one in planted]) for name in max(planted, key=len)},
            "ok": all(one["ok"] for one in judged.values())}


def _tell(result: dict[str, Any], say: Say) -> None:
    for name, one in result["feeds"].items():
        say(f"{name}: {one['changes']:,} changes of {one['tables']} tables; messages: {one['messages']}")
    for text in result["found"]:
        say(text)
    for name, is_found in result["planted"].items():
        say(f"planted: {name}: {'found' if is_found else 'nothing to plant it in' if is_found is None else 'MISSED'}")
    findings = sum(one["findings"] for one in result["feeds"].values())
    say("nothing lost, nothing doubled, everything in order" if result["ok"] else
        f"{findings} findings: this should not have happened" if findings else
        "some kind of process was struck too seldom, or a planted flaw was missed")
