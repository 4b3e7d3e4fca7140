"""Runs seeds: `python -m millrace_sim.machines --seed N` replays one, `--seeds N` runs many."""

from __future__ import annotations

import sys

from millrace_sim.machines.run import main

if __name__ == "__main__":
    sys.exit(main())
