"""Ports: everything a shell may ask of the world. The simulator replaces each of them.

`Clock.now()` is seconds on a clock that runs during suspend (CLOCK_BOOTTIME): leases are counted on it [L16].
`FileSystem` is the small set of file calls the log makes; files are integers, paths are strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from millrace.model.ids import ProcessIdentity


class Clock(Protocol):
    def now(self) -> float: ...

    def wall(self) -> float:
        """Unix time in seconds, for people and for record timestamps; decides nothing."""


class Random(Protocol):
    def uniform(self, a: float, b: float) -> float: ...

    def uuid(self) -> UUID: ...


class Processes(Protocol):
    def me(self) -> ProcessIdentity: ...

    def is_gone(self, process: ProcessIdentity) -> bool:
        """True only with proof: this machine, this boot, and no such pid with that start time [L17]."""


class FileSystem(Protocol):
    """As os has them. `pwrite` may write less than asked and raises OSError as os does."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int: ...
    def close(self, fd: int) -> None: ...
    def pread(self, fd: int, size: int, offset: int) -> bytes: ...
    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int: ...
    def pwritev(self, fd: int, data: Sequence[bytes | bytearray | memoryview], offset: int) -> int: ...
    def truncate(self, fd: int, size: int) -> None: ...
    def sync(self, fd: int) -> None:
        """fdatasync: what was written survives a power cut."""

    def size(self, fd: int) -> int: ...
    def listdir(self, path: str) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def makedirs(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None:
        """Names created, renamed or removed in `path` survive a power cut."""

    def lock(self, path: str) -> int:
        """An exclusive lock held until the process ends or `close`; raises BlockingIOError when another has it."""

    def usage(self, path: str) -> tuple[int, int]:
        """(free bytes, total bytes) of the disk under `path`."""


class Buggify(Protocol):
    """Named points where the simulator may crash the process ("after_ack"); free in production."""

    def __call__(self, point: str) -> None: ...


def no_bug(point: str) -> None:
    """Production: nothing happens."""


@dataclass(frozen=True, slots=True)
class Ports:
    clock: Clock
    random: Random
    processes: Processes
    fs: FileSystem
    buggify: Buggify = no_bug
