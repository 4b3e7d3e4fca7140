"""libFuzzer on one target: `run.py TARGET CORPUS SECONDS SEED`. Ends with 0 unless an input broke a promise.

What is promised of every input: only errors of the tree, within PATIENCE_S, in MEMORY_MB.
"""

from __future__ import annotations

import gc
import pathlib
import sys
from importlib import import_module

import atheris

MEMORY_MB = 512
PATIENCE_S = 10
INPUT_BYTES_MAX = 1 << 14


def main() -> None:
    target, corpus, seconds, seed = sys.argv[1:]
    here = pathlib.Path(__file__).parent
    sys.path[:0] = [str(here.parent), str(here)]
    from targets import TARGETS

    with atheris.instrument_imports(include=["millrace"]):
        for module in TARGETS[target]:
            import_module(module)
    from millrace.errors import MillraceError

    run = import_module(target).run

    def meet(data: bytes) -> None:
        try:
            run(data)
        except MillraceError:
            pass

    gc.freeze()
    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-timeout={PATIENCE_S}", f"-rss_limit_mb={MEMORY_MB}",
               f"-max_len={INPUT_BYTES_MAX}", f"-artifact_prefix={corpus}/broken-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, f"{corpus}/inputs"], meet)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
