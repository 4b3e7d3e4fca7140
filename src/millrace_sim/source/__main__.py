"""`python -m millrace_sim.source --seeds N [--from S] [--off FLAW] [--table]`; `--seed N` replays one."""

from __future__ import annotations

import sys

from millrace_sim.source.run import main

if __name__ == "__main__":
    sys.exit(main())
