"""`python -m millrace_sim.source --seeds N [--first S] [--jobs N] [--off RULE] [--table]`; `--seed N` replays one."""

from __future__ import annotations

import sys

from millrace_sim.source.run import BULK

if __name__ == "__main__":
    sys.exit(BULK.main())
