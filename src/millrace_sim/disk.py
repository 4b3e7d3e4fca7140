"""A disk that forgets as real ones do: the FileSystem port over memory.

A write is seen by every reader at once (page cache) and survives a crash of the process. A power cut keeps what was
synced; of the rest an arbitrary part survives, torn at page borders. Names have their own memory: a file that was
created, renamed or removed is so after a power cut only if its directory was synced, else perhaps. A failed sync
forgets what it was asked to keep, and the next one succeeds (as Linux does). A full disk writes short before it fails.

A sync that runs in the background covers what was written before it began, not what came while it ran.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from millrace_sim.processes import PROCESS, Process, State, refuse_the_dead

PAGE_BYTES = 4096
Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Op:
    """One change of a file that no sync has covered yet. `data` None: the file was cut or grown to `offset`."""

    number: int
    offset: int
    data: bytes | None


@dataclass(slots=True, eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Op] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Folder:
    names: dict[str, Inode | Folder] = field(default_factory=dict)
    durable: dict[str, Inode | Folder] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Naming:
    """One change of names: all of it survives or none. None: the name was removed."""

    changes: tuple[tuple[Folder, str, Inode | Folder | None], ...]


@dataclass(slots=True)
class OpenFile:
    inode: Inode
    process: Process | None
    path: str


class SimDisk:
    """One disk. `capacity_bytes` bounds it, `scatter` lets a power cut keep any pages, not only the first ones."""

    def __init__(self, seed: int | str = 0) -> None:
        self.rng = random.Random(f"{seed}/disk")
        self.root = Folder()
        self.capacity_bytes: int | None = None
        self.scatter = False
        self.sync_failures_left = 0
        self.syncs = 0
        self._files: dict[int, OpenFile] = {}
        self._next_fd = 1000
        self._locks: dict[str, int] = {}
        self._namings: list[Naming] = []
        self._written = 0
        self._covered: tuple[int, int] | None = None     # in the background: ops up to a, and those after b

    # -- files -------------------------------------------------------------------------------------------------------
    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        refuse_the_dead()
        folder, name = self._place(path)
        node = folder.names.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = Inode()
            self._rename_all((folder, name, node))
        elif exclusive:
            raise FileExistsError(errno.EEXIST, "exists", path)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        self._next_fd += 1
        self._files[self._next_fd] = OpenFile(node, PROCESS.get(), path)
        return self._next_fd

    def close(self, fd: int) -> None:
        refuse_the_dead()
        self._file(fd)
        del self._files[fd]
        for path in [p for p, holder in self._locks.items() if holder == fd]:
            del self._locks[path]

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        refuse_the_dead()
        return bytes(self._file(fd).inode.data[offset:offset + size])

    def pwrite(self, fd: int, data: Bytes, offset: int) -> int:
        refuse_the_dead()
        inode = self._file(fd).inode
        content = bytes(data)
        room = self._room(inode, offset, len(content))
        if room == 0 and content:
            raise OSError(errno.ENOSPC, "no space left on device")
        content = content[:room]
        _write(inode.data, offset, content)
        self._remember(inode, offset, content)
        return len(content)

    def pwritev(self, fd: int, data: Sequence[Bytes], offset: int) -> int:
        return self.pwrite(fd, b"".join(data), offset)

    def truncate(self, fd: int, size: int) -> None:
        refuse_the_dead()
        inode = self._file(fd).inode
        _resize(inode.data, size)
        self._remember(inode, size, None)

    def sync(self, fd: int) -> None:
        refuse_the_dead()
        self.syncs += 1
        inode = self._file(fd).inode
        covered = [op for op in inode.pending if self._is_covered(op)]
        inode.pending = [op for op in inode.pending if not self._is_covered(op)]
        if self.sync_failures_left:
            self.sync_failures_left -= 1
            raise OSError(errno.EIO, "input/output error")
        for op in covered:
            _apply(inode.durable, op)

    def size(self, fd: int) -> int:
        refuse_the_dead()
        return len(self._file(fd).inode.data)

    # -- names -------------------------------------------------------------------------------------------------------
    def listdir(self, path: str) -> list[str]:
        refuse_the_dead()
        return sorted(self._folder(path).names)

    def exists(self, path: str) -> bool:
        refuse_the_dead()
        return self._find(path) is not None

    def makedirs(self, path: str) -> None:
        refuse_the_dead()
        folder = self.root
        for name in _parts(path):
            node = folder.names.get(name)
            if node is None:
                node = Folder()
                self._rename_all((folder, name, node))
            if isinstance(node, Inode):
                raise FileExistsError(errno.EEXIST, "a file", path)
            folder = node

    def rename(self, source: str, target: str) -> None:
        refuse_the_dead()
        folder, name = self._place(source)
        node = folder.names.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        to, new_name = self._place(target)
        old = to.names.get(new_name)
        if isinstance(old, Folder) and old.names:
            raise OSError(errno.ENOTEMPTY, "directory not empty", target)
        self._rename_all((folder, name, None), (to, new_name, node))

    def unlink(self, path: str) -> None:
        refuse_the_dead()
        folder, name = self._place(path)
        node = folder.names.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        self._rename_all((folder, name, None))

    def remove_tree(self, path: str) -> None:
        """As a recursive removal: names go one by one, innermost first, so a power cut may leave some."""
        refuse_the_dead()
        folder = self._folder(path)
        for name in sorted(folder.names):
            if isinstance(folder.names[name], Folder):
                self.remove_tree(f"{path}/{name}")
            else:
                self.unlink(f"{path}/{name}")
        if _parts(path):
            parent, name = self._place(path)
            self._rename_all((parent, name, None))

    def sync_dir(self, path: str) -> None:
        refuse_the_dead()
        folder = self._folder(path)
        for naming in [n for n in self._namings if any(f is folder for f, _, _ in n.changes)]:
            _settle(naming)
            self._namings.remove(naming)

    def lock(self, path: str) -> int:
        fd = self.open(path, create=True)
        holder = self._locks.get(path)
        if holder is not None and holder in self._files:
            del self._files[fd]
            raise BlockingIOError(errno.EAGAIN, "locked by another", path)
        self._locks[path] = fd
        return fd

    def usage(self, path: str) -> tuple[int, int]:
        refuse_the_dead()
        total = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return max(0, total - self.used_bytes()), total

    # -- what happens to disks ---------------------------------------------------------------------------------------
    def process_died(self, process: Process) -> None:
        """Its files and locks are closed; what it wrote stays in the page cache."""
        for fd in [fd for fd, file in self._files.items() if file.process is process]:
            del self._files[fd]

    def power_cut(self) -> None:
        """Only what a sync covered is sure; of the rest any part may be there."""
        self._files.clear()
        self._locks.clear()
        kept = self._namings[:self.rng.randint(0, len(self._namings))]
        for naming in kept:
            _settle(naming)
        self._namings.clear()
        for folder in list(_folders(self.root)):
            folder.names = dict(folder.durable)
        for inode in list(_inodes(self.root)):
            self._tear(inode)

    def wipe(self) -> None:
        """The data directory was lost: an empty disk."""
        self._files.clear()
        self._locks.clear()
        self._namings.clear()
        self.root = Folder()

    def rot(self, path: str, offset: int) -> None:
        """Flips one bit where it lies, unnoticed."""
        node = self._find(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(path)
        node.data[offset] ^= 0x10
        if offset < len(node.durable):
            node.durable[offset] ^= 0x10

    def as_background(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work` will run later; syncs in it cover what is written by now (or, by chance, by then) and its own."""
        begun = self._written

        def run() -> None:
            covered = begun if self.rng.random() < 0.7 else self._written
            self._covered = (covered, self._written)
            try:
                work()
            finally:
                self._covered = None

        return run

    def used_bytes(self) -> int:
        return sum(len(inode.data) for inode in _inodes(self.root))

    def path_of(self, fd: int) -> str:
        return self._file(fd).path

    def paths(self) -> list[str]:
        return sorted(_walk(self.root, ""))

    # -- inside ------------------------------------------------------------------------------------------------------
    def _remember(self, inode: Inode, offset: int, data: bytes | None) -> None:
        self._written += 1
        inode.pending.append(Op(self._written, offset, data))

    def _is_covered(self, op: Op) -> bool:
        return self._covered is None or op.number <= self._covered[0] or op.number > self._covered[1]

    def _tear(self, inode: Inode) -> None:
        keep = self.rng.random()
        ops = inode.pending
        cut = self.rng.randint(0, len(ops))
        for number, op in enumerate(ops):
            if self.scatter:
                self._apply_pages(inode.durable, op, keep)
            elif number < cut:
                _apply(inode.durable, op)
            elif number == cut and op.data is not None:
                unit = self.rng.choice((1, 512, PAGE_BYTES))
                torn = self.rng.randint(0, len(op.data) // unit) * unit
                _apply(inode.durable, Op(0, op.offset, op.data[:torn]))
        inode.pending = []
        inode.data = bytearray(inode.durable)

    def _apply_pages(self, image: bytearray, op: Op, keep: float) -> None:
        if op.data is None:
            if self.rng.random() < keep:
                _apply(image, op)
            return
        for start, piece in _pages(op.offset, op.data):
            if self.rng.random() < keep:
                _write(image, start, piece)

    def _room(self, inode: Inode, offset: int, size: int) -> int:
        if self.capacity_bytes is None:
            return size
        growth = max(0, offset + size - len(inode.data))
        over = self.used_bytes() + growth - self.capacity_bytes
        return size if over <= 0 else max(0, size - over)

    def _file(self, fd: int) -> OpenFile:
        file = self._files.get(fd)
        if file is None or (file.process is not None and file.process.state is State.DEAD):
            raise OSError(errno.EBADF, "bad file descriptor")
        return file

    def _rename_all(self, *changes: tuple[Folder, str, Inode | Folder | None]) -> None:
        for folder, name, node in changes:
            _set(folder.names, name, node)
        self._namings.append(Naming(changes))

    def _find(self, path: str) -> Inode | Folder | None:
        node: Inode | Folder | None = self.root
        for name in _parts(path):
            if not isinstance(node, Folder):
                return None
            node = node.names.get(name)
        return node

    def _folder(self, path: str) -> Folder:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if isinstance(node, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "a file", path)
        return node

    def _place(self, path: str) -> tuple[Folder, str]:
        head, name = os.path.split(path.rstrip("/"))
        return self._folder(head), name


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _write(image: bytearray, offset: int, data: bytes) -> None:
    if offset > len(image):
        image.extend(bytes(offset - len(image)))
    image[offset:offset + len(data)] = data


def _resize(image: bytearray, size: int) -> None:
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))


def _apply(image: bytearray, op: Op) -> None:
    if op.data is None:
        _resize(image, op.offset)
    else:
        _write(image, op.offset, op.data)


def _pages(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """`data` cut where the file's pages end."""
    position = 0
    while position < len(data):
        size = PAGE_BYTES - (offset + position) % PAGE_BYTES
        yield offset + position, data[position:position + size]
        position += size


def _set(names: dict[str, Inode | Folder], name: str, node: Inode | Folder | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _settle(naming: Naming) -> None:
    for folder, name, node in naming.changes:
        _set(folder.durable, name, node)


def _folders(folder: Folder) -> Iterator[Folder]:
    """Also those reachable only by their durable names."""
    yield folder
    seen: list[Folder] = []
    for node in [*folder.names.values(), *folder.durable.values()]:
        if isinstance(node, Folder) and not any(node is s for s in seen):
            seen.append(node)
            yield from _folders(node)


def _inodes(folder: Folder) -> Iterator[Inode]:
    for node in folder.names.values():
        if isinstance(node, Folder):
            yield from _inodes(node)
        else:
            yield node


def _walk(folder: Folder, prefix: str) -> Iterator[str]:
    for name, node in folder.names.items():
        yield f"{prefix}/{name}"
        if isinstance(node, Folder):
            yield from _walk(node, f"{prefix}/{name}")
