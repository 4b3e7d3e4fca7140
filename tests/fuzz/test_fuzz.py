"""Decoders of bytes from outside under libFuzzer: only errors of the tree, bounded time and memory [L25, A10].

MILLRACE_FUZZ_S: seconds for each target, 20 if it is not set; `make chaos` takes ten minutes. CI always begins with the
same seed of libFuzzer, so that it finds what a change has broken; chaos takes another one each time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from targets import TARGETS  # noqa: E402 - stands beside this file

from millrace.errors import MillraceError  # noqa: E402

CI_S, CHAOS_S = 20, 600
CI_SEED, ANY_SEED = 1, 0          # 0: libFuzzer chooses
KEPT = HERE / "kept"              # inputs that once broke a promise: by target, a file each


def fuzz(target: str, directory: Path, seconds: int, seed: int) -> str:
    inputs = directory / "inputs"
    inputs.mkdir()
    for number, data in enumerate(import_module(target).seeds()):
        (inputs / f"seed-{number}").write_bytes(data)
    program = [sys.executable, str(HERE / "run.py"), target, str(directory), str(seconds), str(seed)]
    done = subprocess.run(program, cwd=directory, capture_output=True, text=True, timeout=seconds + 120)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stderr


@pytest.mark.timeout(240)
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_L25_bytes_from_outside_raise_nothing_but_errors_of_the_tree(target: str, tmp_path: Path) -> None:
    told = fuzz(target, tmp_path, int(os.environ.get("MILLRACE_FUZZ_S", CI_S)), CI_SEED)
    runs = int(told.partition("number_of_executed_units:")[2].split()[0])
    print(f"{target}: {runs} inputs")
    assert runs > 1000, "it met next to nothing"


@pytest.mark.long
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_L25_bytes_from_outside_for_ten_minutes(target: str, tmp_path: Path) -> None:
    fuzz(target, tmp_path, int(os.environ.get("MILLRACE_FUZZ_S", CHAOS_S)), ANY_SEED)


def kept() -> list[Path]:
    return sorted(KEPT.glob("*/*"))


@pytest.mark.parametrize("path", kept(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_L25_what_once_broke_a_decoder_is_refused(path: Path) -> None:
    with pytest.raises(MillraceError):
        import_module(path.parent.name).run(path.read_bytes())


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_seeds_are_understood(target: str) -> None:
    """Else the fuzzer would begin with noise."""
    module, refused, count = import_module(target), 0, 0
    for seed in module.seeds():
        count += 1
        try:
            module.run(seed)
        except MillraceError:
            refused += 1
    assert count > 0
    assert refused <= count / 2
