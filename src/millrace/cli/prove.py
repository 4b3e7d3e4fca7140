"""`millrace prove`: a changefeed under kill -9 and pauses; each change arrives once and in order [A5]."""

from __future__ import annotations

import random
from json import dumps

from millrace.cli.exits import FAILED, USAGE, CommandFailed
from millrace.cli.output import console

EACH_S = 200.0                         # in which every kind of process is hurt once at least


def prove(*, seconds: float = 60.0, seed: int | None = None, strikes: bool = True, each: int | None = None,
          logs: str = "", json: bool = False) -> None:
    """Run two changefeeds over a live shop database on a cluster of its own, kill and pause whatever does the work,
    again and again, and judge every message: nothing lost, nothing twice, no other value, each key in order, each
    schema change once and in its place, the same rows at the end. Exit 1 unless it is so.

    Parameters
    ----------
    seconds
        How long the shop writes and processes are hurt.
    seed
        Of the order of harm and of what the writers do; at first by chance. The interleaving is never the same.
    strikes
        Hurt processes; without it the shop only writes.
    each
        Go on, if need be longer, until every kind of process was hurt so often; by default once, in 10 minutes 3 times.
    logs
        Directory to which the logs of all processes are copied.
    json
        Print the result as JSON, and nothing else.
    """
    if seconds <= 0 or (each or 0) < 0:
        raise CommandFailed(f"--seconds {seconds:g} --each {each}: give more than 0 seconds, and 0 or more", USAGE)
    from millrace.cli.prove_run import run  # Arrow and drivers: other commands start faster without them

    chosen = random.SystemRandom().randrange(1 << 16) if seed is None else seed
    result = run(seconds, chosen, _say_nothing if json else _say, strikes=strikes, logs=logs,
                 each=max(1, int(seconds // EACH_S)) if each is None else each)
    if json:
        print(dumps(result, indent=2))
    if not result["ok"]:
        raise SystemExit(FAILED)


def _say(text: str) -> None:
    console().print(text, soft_wrap=True, markup=False, highlight=False)


def _say_nothing(_: str) -> None:
    """Headless."""
