"""One seed of the shell world, as a line for people: what it was like, or what went wrong and how to replay it."""

from __future__ import annotations

import time
import traceback

from millrace_sim.faults import Faults
from millrace_sim.shell.plants import planted
from millrace_sim.shell.world import World


def run_seed(seed: int, *, duration_s: float = 30.0, plant: str = "", verbose: bool = False) -> tuple[int, str, str]:
    """(seed, one line about it, what went wrong or "")."""
    begun = time.process_time()
    world = World(seed, duration_s=duration_s)
    world.verbose = world.sim.loop.trace.echo = verbose
    try:
        with planted(plant):
            report = world.run()
    except Exception as exc:
        return seed, _line(seed, world, begun), _failure(seed, world, exc, plant)
    words = [
        _line(seed, world, begun), f"acked {report.acked}", f"reads {report.reads}", f"starts {report.starts}",
        f"healed in {report.healed_after_s:.1f} s", f"crc {report.trace_crc:08x}", f"{report.faults} {report.points}",
    ]
    return seed, ", ".join(words), ""


def _line(seed: int, world: World, begun: float) -> str:
    loop = world.sim.loop
    return f"seed {seed}: {loop.now:.0f} s simulated, {loop.steps} steps, {time.process_time() - begun:.1f} s CPU"


def _failure(seed: int, world: World, exc: Exception, plant: str) -> str:
    last = "\n".join(list(world.sim.loop.trace.lines)[-15:])
    why = "".join(traceback.format_exception(exc))
    flag = f" --plant {plant}" if plant else ""
    replay = f"replay: .venv/bin/python -m millrace_sim.shell --seed {seed}{flag}"
    return f"{why}\nlast events:\n{last}\nfaults: {Faults.draw(seed).names()}\n{replay}"
