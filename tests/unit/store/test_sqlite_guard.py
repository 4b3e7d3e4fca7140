"""The guard's eyes: lock tables and recorded processes. What it does with them is shown in tests/process [L18]."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from millrace import limits
from millrace.model.ids import ProcessIdentity
from millrace.store.sqlite_guard import Lookout, Participants, lock_owners

TABLE = """\
1: POSIX  ADVISORY  WRITE 100 fe:00:555 120 120
1: -> POSIX  ADVISORY  WRITE 101 fe:00:555 120 120
2: POSIX  ADVISORY  READ 102 fe:00:555 123 123
3: FLOCK  ADVISORY  WRITE 103 fe:00:555 0 EOF
4: POSIX  ADVISORY  WRITE 104 fe:00:556 0 EOF
5: OFDLCK ADVISORY  WRITE -1 fe:00:555 0 EOF
6: POSIX  ADVISORY  WRITE 0 fe:00:555 1 1
7: POSIX  MANDATORY WRITE 107 00:2a:777 1073741824 1073742335
8: LEASE  ACTIVE    READ 108 fe:00:555 0 EOF
"""


def test_L18_owners_are_holders_of_write_locks_and_nobody_else() -> None:
    assert lock_owners(TABLE, {555, 777}) == {100, 107}
    assert lock_owners(TABLE, {1}) == set()
    assert lock_owners("", {555}) == set()


def test_L18_only_recorded_processes_are_ours_and_past_ones_are_swept(tmp_path: Path) -> None:
    first = Participants(str(tmp_path))
    first.enter()
    assert first.recorded(os.getpid()) == first.me
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        assert first.recorded(stranger.pid) is None
        stranger.communicate(b"\n")
    assert first.recorded(stranger.pid) is None
    past = [f"{stranger.pid}-1-{first.me.boot_id}", f"{os.getpid()}-{first.me.start_time}-another boot"]
    for name in past:
        (tmp_path / "processes" / name).touch()
        (tmp_path / "processes" / f"{name}.new").mkdir()
    (tmp_path / "processes" / "README").touch()
    scratch = Path(first.scratch())
    Participants(str(tmp_path)).enter()
    left = {path.name for path in (tmp_path / "processes").iterdir()}
    assert left == {"README", scratch.parent.name, scratch.parent.name.removesuffix(".new")}
    assert scratch.exists()


class OneOwner(Lookout):
    """A lookout that sees this process, which is not stopped, on the lock of a file nobody writes to."""

    disk = False

    def _waits_for_disk(self, owner: ProcessIdentity) -> bool:
        return self.disk

    def _owners(self) -> list[ProcessIdentity]:
        return [self.participants.me]


def looks_until_blamed(tmp_path: Path, gap_s: float, vacated: bool) -> int:
    participants = Participants(str(tmp_path))
    lookout = OneOwner(str(tmp_path / "x.db"), participants)
    for number in range(1000):
        if lookout.look(number * gap_s, participants.me if vacated else None) is not None:
            return number
    raise AssertionError("never blamed")


def test_L18_looks_that_come_late_do_not_stretch_the_limit(tmp_path: Path) -> None:
    for gap_s in (0.05, 0.1, 0.2):
        assert looks_until_blamed(tmp_path, gap_s, vacated=False) * gap_s <= limits.TENURE_S
    assert looks_until_blamed(tmp_path, 0.05, vacated=True) * 0.05 <= limits.TENURE_S / 2 + 0.1


def test_L18_an_owner_that_waits_for_the_disk_is_blamed_only_for_the_rest(tmp_path: Path) -> None:
    participants = Participants(str(tmp_path))
    lookout = OneOwner(str(tmp_path / "x.db"), participants)
    lookout.disk = True
    assert all(lookout.look(number * 0.05, participants.me) is None for number in range(1000))
    lookout.disk = False
    blamed = [number for number in range(1000, 1040) if lookout.look(number * 0.05, participants.me) is not None]
    assert blamed, "what it spends elsewhere still counts"


def test_L18_a_watcher_that_was_suspended_blames_nobody_for_it(tmp_path: Path) -> None:
    assert looks_until_blamed(tmp_path, 3600.0, vacated=False) >= 7


def test_L18_an_owner_under_which_something_is_written_is_never_blamed(tmp_path: Path) -> None:
    participants = Participants(str(tmp_path))
    lookout = OneOwner(str(tmp_path / "x.db"), participants)
    for number in range(200):
        (tmp_path / "x.db-wal").write_bytes(b"x" * number)
        assert lookout.look(number * 0.05, participants.me) is None
