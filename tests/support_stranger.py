"""What another account of the machine, or a peer without any secret, can try; and which ports somebody listens on."""

from __future__ import annotations

import codecs
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from starlette.routing import Route

NOBODY = 65534
TRY_S = 20.0
codecs.lookup("idna")               # of host names: another account may not load it later


def as_nobody(tries: Callable[[], Any]) -> Any:
    """What `tries` returns, as JSON, run in a child that has given up this account for good."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, json.dumps(tries()).encode())
        except BaseException as error:
            os.write(writer, json.dumps({"error": repr(error)}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return said


class Listening(NamedTuple):
    pid: int
    host: str
    port: int


def listening(pids: Iterable[int]) -> list[Listening]:
    """Every TCP socket that these processes listen on."""
    by_inode = {}
    for family, table in ((socket.AF_INET, "/proc/net/tcp"), (socket.AF_INET6, "/proc/net/tcp6")):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, _, port = fields[1].partition(":")
                by_inode[fields[9]] = (_host(family, address), int(port, 16))
    return sorted({Listening(pid, *by_inode[inode]) for pid in pids for inode in _sockets(pid) if inode in by_inode})


def local_sockets(pids: Iterable[int]) -> list[str]:
    """The addresses of every Unix socket that these processes have bound; of an abstract one with a leading @: no mode
    of a file keeps anybody from it."""
    by_inode = {fields[6]: fields[7] for line in Path("/proc/net/unix").read_text().splitlines()[1:]
                if len(fields := line.split()) > 7}
    return sorted({by_inode[inode] for pid in pids for inode in _sockets(pid) if inode in by_inode})


def _host(family: int, words: str) -> str:
    raw = b"".join(int(words[n:n + 8], 16).to_bytes(4, "little") for n in range(0, len(words), 8))
    return socket.inet_ntop(family, raw).removeprefix("::ffff:")


def _sockets(pid: int) -> list[str]:
    found = []
    for fd in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found += re.findall(r"socket:\[(\d+)\]", os.readlink(fd))
        except FileNotFoundError:
            continue
    return found


# -- what is tried -------------------------------------------------------------------------------------------------


def ask(port: int, method: str, path: str, *headers: str, body: bytes = b"") -> tuple[int, bytes]:
    """(status, body) of one request, spelt out: nothing adds a token."""
    lines = [f"{method} {path} HTTP/1.0", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(body)}", *headers, "", ""]
    raw = exchange(port, "\r\n".join(lines).encode() + body)
    head, _, rest = raw.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), rest


def ask_all(port: int, routes: Iterable[Route]) -> dict[str, tuple[int, str]]:
    """Each method of each route, with a body where one could be, from somebody without a token."""
    answers = {}
    for route in routes:
        path = re.sub(r"\{[^}]+:int\}", "0", re.sub(r"\{[^}:]+(:path)?\}", "x", route.path))
        for method in sorted(route.methods or ()):
            body = b'{"name": "x", "partitions": 1, "url": "postgresql://h/d"}' if method in ("POST", "PUT") else b""
            status, said = ask(port, method, path, "Content-Type: application/json", body=body)
            answers[f"{method} {route.path}"] = (status, said.decode())
    return answers


def exchange(port: int, data: bytes, host: str = "127.0.0.1") -> bytes:
    """All that comes back until the other side ends it; TimeoutError when it does not."""
    with socket.create_connection((host, port), timeout=TRY_S) as conn:
        conn.sendall(data)
        parts = []
        try:
            while part := conn.recv(1 << 16):
                parts.append(part)
        except ConnectionError:
            pass
        return b"".join(parts)


def spark_rpc(port: int) -> bytes:
    """The answer to a call of Spark's own RPC or block manager, framed as its processes frame them, without their
    secret."""
    body = b"\xac\xed\x00\x05t\x00\x05hello"
    message = struct.pack(">bqi", 3, 7, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=TRY_S) as conn, conn.makefile("rb") as stream:
        conn.sendall(struct.pack(">q", 8 + len(message)) + message)
        size: int = struct.unpack(">q", stream.read(8))[0]
        return stream.read(size - 8)


def spark_worker(port: int) -> bytes:
    """A worker of Spark's Python daemon, asked for with a secret of our own."""
    return exchange(port, struct.pack(">i", 5) + b"guess")


def changed(directories: Iterable[str], files: Iterable[str], pids: Iterable[int]) -> list[str]:
    """What could be written, made or signalled; a file is opened only, a signal is the one of number 0."""
    tries: list[tuple[str, Callable[[], Any]]] = []
    for path in directories:
        new = os.path.join(path, "stranger")
        tries += [(f"make {new}", lambda new=new: os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY))),
                  (f"link into {path}", lambda new=new: os.symlink("/", new)),
                  (f"mode of {path}", lambda path=path: os.chmod(path, 0o777))]
    tries += [(f"write {path}", lambda path=path: os.close(os.open(path, os.O_WRONLY))) for path in files]
    tries += [(f"signal {pid}", lambda pid=pid: os.kill(pid, 0)) for pid in pids]
    tries += [(f"memory of {pid}", lambda pid=pid: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))) for pid in pids]
    found = []
    for title, attempt in tries:
        try:
            attempt()
        except (PermissionError, FileNotFoundError):
            continue
        found.append(title)
    return found


def opened(paths: Iterable[str]) -> list[str]:
    """Those of these files and directories that can be read."""
    found = []
    for path in paths:
        try:
            if os.path.isdir(path):
                os.listdir(path)
            else:
                os.close(os.open(path, os.O_RDONLY))
        except OSError:
            continue
        found.append(path)
    return found
