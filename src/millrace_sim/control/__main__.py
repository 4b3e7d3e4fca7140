"""`python -m millrace_sim.control --seeds N [--first S] [--jobs 2] [--off FLAW] [--table]`; `--seed N` replays one."""

from __future__ import annotations

import sys

from millrace_sim.control.run import main

if __name__ == "__main__":
    sys.exit(main())
