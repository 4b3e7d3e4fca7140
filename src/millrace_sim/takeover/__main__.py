"""`python -m millrace_sim.takeover --seeds N [--from S] [--off RULE] [--jobs N] [--table]`; `--seed N` replays one."""

from __future__ import annotations

import sys

from millrace_sim.takeover.run import main

if __name__ == "__main__":
    sys.exit(main())
