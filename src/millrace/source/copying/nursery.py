"""Where workers come from: `python -m millrace.source.copying.nursery`.

    runner ──▶ nursery: imports once ──fork──▶ worker ◀── tasks, results, on a socket of its own ──▶ runner

In: sockets, one for each worker wanted, on the socket that is standard input. Out: the worker's pid, 4 bytes. Imports
take half a second of CPU time, a fork some milliseconds. Promise: it ends when its parent does, and after its workers:
their CPU time is on its account.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys

from millrace.limits import COPY_SILENCE_S, MIB

PID_BYTES = 4
NICE = 5
ENVIRON = {
    "OPENBLAS_NUM_THREADS": "1",     # numpy's BLAS starts a thread per core, and they spin; nobody multiplies matrices
    # Buffers of the same sizes come again and again: glibc keeps them, the kernel need not clear their pages each time.
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "MALLOC_TRIM_THRESHOLD_": str(64 * MIB),
}


# -- the runner's side -------------------------------------------------------------------------------------------------


class Nursery:
    """Started by the first `fork`."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._lock = asyncio.Lock()

    async def fork(self) -> tuple[int, socket.socket]:
        """(pid, our end of its socket) of a new worker. OSError, EOFError, TimeoutError: there is none."""
        async with self._lock:
            ours, theirs = socket.socketpair()
            try:
                async with asyncio.timeout(COPY_SILENCE_S):
                    pid = await self._ask(theirs)
            except BaseException:
                ours.close()
                await self._end()
                raise
            finally:
                theirs.close()
            ours.setblocking(False)
            return pid, ours

    async def close(self) -> None:
        async with self._lock:
            await self._end()

    async def _ask(self, theirs: socket.socket) -> int:
        control = self._control if self._control is not None else await self._start()
        socket.send_fds(control, [b"w"], [theirs.fileno()])
        told = await asyncio.get_running_loop().sock_recv(control, PID_BYTES)
        if len(told) < PID_BYTES:
            raise EOFError("the nursery of workers has ended")
        return int.from_bytes(told, "big")

    async def _start(self) -> socket.socket:
        control, theirs = socket.socketpair()
        control.setblocking(False)
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "millrace.source.copying.nursery", stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL, env={**os.environ, **ENVIRON})
            except BaseException:
                control.close()
                raise
        self._control = control
        return control

    async def _end(self) -> None:
        """Without a parent it ends by itself, when its workers have; one that does not is killed."""
        process, self._process = self._process, None
        if self._control is not None:
            self._control.close()
            self._control = None
        if process is None:
            return
        try:
            async with asyncio.timeout(1):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


# -- the process -------------------------------------------------------------------------------------------------------


def main() -> None:
    gc.disable()                         # nothing of what is imported is garbage: looking takes a fifth of the time
    from millrace.source.copying.worker import serve

    gc.freeze()
    gc.enable()
    os.nice(NICE)                        # where they share cores, the stream goes before copies
    control = socket.socket(fileno=0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)     # a terminal sends it to all; the parent says what becomes of us
    signal.signal(signal.SIGCHLD, lambda *_: _reap(os.WNOHANG))
    while True:
        word, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not word:
            break
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            serve(socket.socket(fileno=sockets[0]))
        os.close(sockets[0])
        control.sendall(pid.to_bytes(PID_BYTES, "big"))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _reap(0)


def _reap(options: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


if __name__ == "__main__":
    main()
