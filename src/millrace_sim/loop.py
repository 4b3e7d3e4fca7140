"""A virtual-time asyncio event loop. In: ordinary asyncio code. Out: the same run for the same seed.

Time jumps to the next timer as soon as nothing is runnable, so an hour of time-outs costs only the callbacks in it.
Callbacks run in the order asyncio promises; interleavings come from seeded latencies. Work for an executor runs inline
after simulated time. Real sockets, threads and subprocesses are refused. An exception that nobody handles in a task or
callback stops the world; so does a loop where all wait and no timer is set (`Deadlock`).

Each handle belongs to the process in its context: dropped when that process is dead, held while it is stopped.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, Unpack, cast

from millrace_sim.processes import PROCESS, Crashed, State

if TYPE_CHECKING:
    from millrace_sim.net import SimNet

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
CANCELLED_KEPT_MAX = 200
TURN_S = 1e-6      # code takes time: a timer that is always due again must not make time stand still


class Deadlock(RuntimeError):
    """Nothing is runnable and no timer is set, yet the main coroutine has not finished."""


class NotSimulated(RuntimeError):
    """The code under test asked for something of the real world."""


class Trace:
    """What happened, as a checksum, and the last lines of it for people."""

    def __init__(self, kept: int = 400) -> None:
        self.crc = 0
        self.lines: deque[str] = deque(maxlen=kept)
        self.echo = False

    def note(self, now: float, line: str) -> None:
        text = f"{now:.6f} {line}"
        self.crc = zlib.crc32(text.encode(), self.crc)
        self.lines.append(text)
        if self.echo:
            print(text, flush=True)


class Timer(asyncio.TimerHandle):
    """Equal times run in the order they were asked for, as they do where time never stands still."""

    __slots__ = ("order",)
    order: int
    _when: float

    def __lt__(self, other: Any) -> bool:
        if self._when == other._when:
            return self.order < cast(Timer, other).order
        return self._when < cast(Timer, other)._when


class VirtualLoop(asyncio.BaseEventLoop):
    _ready: deque[asyncio.Handle]
    _scheduled: list[Timer]
    _timer_cancelled_count: int
    _stopping: bool
    net: SimNet

    def __init__(self, seed: int | str = 0) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0
        self._timers = 0
        self.trace = Trace()
        self.rng = random.Random(f"{seed}/loop")
        self.kit_context = contextvars.Context()
        self.failure: BaseException | None = None
        self._busy_until: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._orphans: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.set_exception_handler(lambda _, context: self._unhandled(context))
        self.set_task_factory(lambda _, coro, context=None: self._make_task(coro, context))

    def __del__(self, _warn: object = None) -> None:
        """It holds no selector and no socket: there is nothing to leak."""

    # -- time --------------------------------------------------------------------------------------------------------
    def time(self) -> float:
        process = PROCESS.get()
        return self.now if process is None else process.host.loop_time(self.now)

    def call_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts,
                context: contextvars.Context | None = None) -> asyncio.TimerHandle:
        """`when` is in the caller's own time: a host whose clock runs fast sees its timers end early."""
        process = PROCESS.get()
        true = when if process is None else process.host.true_time(when)
        return self._timer(true, callback, args, context)

    def kit_at(self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> asyncio.TimerHandle:
        """A timer of the world itself, in true time, belonging to no process."""
        return self._timer(when, callback, args, self.kit_context)

    def _timer(self, when: float, callback: Callable[..., object], args: tuple[Any, ...],
               context: contextvars.Context | None) -> Timer:
        timer = Timer(when, callback, args, self, context)
        self._timers += 1
        timer.order = self._timers
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def note(self, line: str) -> None:
        self.trace.note(self.now, line)

    # -- one turn ----------------------------------------------------------------------------------------------------
    def _run_once(self) -> None:
        self._drop_cancelled()
        ready, scheduled = self._ready, self._scheduled
        if not ready and not self._stopping:
            if not scheduled:
                raise Deadlock("all tasks wait and no timer is set")
            self.now = max(self.now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        count = len(ready)
        for _ in range(count):
            self._run_handle(ready.popleft())
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
        self.steps += count
        self.now += TURN_S

    def _run_handle(self, handle: Any) -> None:
        if handle._cancelled:
            return
        process = handle._context.get(PROCESS)
        if process is not None and process.halted:
            if process.state is State.STOPPED:
                process.held.append(handle)
            return
        handle._run()

    def _drop_cancelled(self) -> None:
        scheduled: list[Any] = self._scheduled
        if self._timer_cancelled_count > CANCELLED_KEPT_MAX and self._timer_cancelled_count * 2 > len(scheduled):
            for handle in scheduled:
                handle._scheduled = not handle._cancelled
            scheduled[:] = [handle for handle in scheduled if not handle._cancelled]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False

    def take_back(self, held: deque[asyncio.Handle]) -> None:
        """Handles held while their process was stopped run now, in their order."""
        self._ready.extend(held)
        held.clear()

    def _process_events(self, event_list: object) -> None:
        """There is no selector."""

    def _write_to_self(self) -> None:
        """There is no other thread to wake the loop."""

    # -- tasks and their failures ------------------------------------------------------------------------------------
    def _make_task(self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
                   context: contextvars.Context | None = None) -> asyncio.Task[T]:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        task = asyncio.Task(coro, loop=self, context=context)
        (self._orphans if process is None else process.tasks).add(task)
        return task

    def _unhandled(self, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        if isinstance(exc, Crashed) or self.failure is not None:
            return
        process = PROCESS.get()
        if process is not None and process.state is State.DEAD:
            return
        if exc is None:
            exc = AssertionError(f"{context.get('message')}: {context.get('task') or context.get('future')}")
        else:
            exc.add_note(f"simulated time {self.now:.6f}: {context.get('message')}")
        self.failure = exc

    def fail(self, exc: BaseException) -> None:
        """Stops the world at the end of the running callback."""
        if self.failure is None:
            self.failure = exc

    # -- executor ----------------------------------------------------------------------------------------------------
    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Blocking work takes simulated time and then runs on this thread; a dead process's never does."""
        future: asyncio.Future[T] = self.create_future()
        process = PROCESS.get()
        if process is None:
            self.call_later(self.rng.expovariate(1000), _work, future, func, args)
            return future
        host = process.host
        work = host.disk.as_background(lambda: _work(future, func, args))
        begin = self.now
        if getattr(executor, "_max_workers", 0) == 1:    # one thread: its jobs follow each other
            begin = max(begin, self._busy_until.get(executor, 0.0))
        end = begin + self.rng.expovariate(1 / host.work_mean_s)
        if executor is not None:
            self._busy_until[executor] = end
        self._timer(end, work, (), None)
        return future

    # -- network -----------------------------------------------------------------------------------------------------
    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        _refuse_options(options)
        return self.net.listen(protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        _refuse_options(options)
        return await self.net.connect(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(2, 1, 6, "", (host, port))]


def _work(future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except Exception as exc:
        future.set_exception(exc)
    else:
        future.set_result(result)


def _refuse_options(options: dict[str, Any]) -> None:
    for name in ("ssl", "sock", "local_addr"):
        if options.get(name) is not None:
            raise NotSimulated(f"{name}= is not simulated")


def _refuser(name: str) -> Callable[..., NoReturn]:
    def refuse(self: VirtualLoop, *args: Any, **kw: Any) -> NoReturn:
        raise NotSimulated(f"the virtual loop has no {name}: use the ports")

    return refuse


for _name in ("add_reader", "add_writer", "sock_recv", "sock_recv_into", "sock_sendall", "sock_connect", "sock_accept",
              "sendfile", "sock_sendfile", "start_tls", "create_datagram_endpoint", "create_unix_connection",
              "create_unix_server", "connect_read_pipe", "connect_write_pipe", "subprocess_exec", "subprocess_shell",
              "add_signal_handler", "connect_accepted_socket"):
    setattr(VirtualLoop, _name, _refuser(_name))
