"""Processes that run functions which may crash or hang: kernels under test, on the host or a GPU.

A :class:`Worker` is one process, which imports what it needs once and then runs call after call. It
is started by the first call, never forked from this process, and started again by the next call
after it died. :class:`Workers` are several, and hand out work::

    with Workers(jobs) as workers:
        for found in workers.map(function, items, timeout=60):
            if isinstance(found, Ended):
                ...  # crashed, or did not end in time

Functions and what they take and give go through pickle, so functions stand in modules, and not in
``__main__``. What a function raises, its call raises here. A worker ends with the process that
started it, however that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Ended:
    """A call that gave nothing, since its process ended.

    Attributes:
        how: in words: "crashed: SIGSEGV", or "did not end within 300 s".
        doing: what the function last said by :func:`tell`.
        late: whether it was ended for taking too long.
        fresh: whether the process had run nothing before that could be to blame.
    """

    how: str
    doing: Any
    late: bool
    fresh: bool


class Closed(Exception):
    """The workers are no more: nothing can be called."""


class Worker:
    """One process. For one thread at a time, but for :meth:`close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._used = False
        self._closed = False
        self._lock = threading.Lock()

    def call(
        self, function: Callable[..., Value], *arguments: Any, timeout: float | None = None
    ) -> Value | Ended:
        """What the function gives, or how its process ended. The time counts from when the function
        begins: a process may take long to start and to import."""
        connection = self._started()
        fresh, self._used = not self._used, True
        try:
            said, value = self._answer(connection, (function, arguments), timeout, fresh)
        except BaseException:  # such as Ctrl-C: what it will answer is no answer to the next call
            self.stop()
            raise
        if said == "raised":
            raise value
        return value  # type: ignore[no-any-return]

    def _answer(
        self, connection: Connection, call: tuple[Any, ...], timeout: float | None, fresh: bool
    ) -> tuple[str, Any]:
        begun, doing, deadline = False, None, None
        try:
            connection.send_bytes(pickle.dumps(call))
            while connection.poll(deadline and max(0.0, deadline - time.monotonic())):
                said, value = connection.recv()
                if said in ("value", "raised"):
                    return said, value
                if said == "begins":
                    begun, deadline = True, timeout and time.monotonic() + timeout
                else:
                    doing = value
        except (EOFError, ConnectionError):
            status = self.stop()
            if self._closed:
                raise Closed from None
            if not begun:
                raise RuntimeError(f"a worker did not start: {_cause(status)}") from None
            return "ended", Ended(f"crashed: {_cause(status)}", doing, False, fresh)
        self.stop()
        return "ended", Ended(f"did not end within {timeout:g} s", doing, True, fresh)

    def stop(self) -> int:
        """End the process, if there is one; its exit status. The next call starts another."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is None or connection is None:
            return 0
        _kill(process)  # of one that ended by itself, what it started
        status = process.wait()
        connection.close()
        assert process.stdin is not None
        process.stdin.close()
        return status

    def close(self) -> None:
        """End the process at once and for good, from any thread: a call that runs raises Closed."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                _kill(self._process)

    def _started(self) -> Connection:
        with self._lock:
            if self._closed:
                raise Closed
            if self._connection is None:
                self._connection, theirs = Pipe()
                with theirs:
                    self._process = _start(theirs.fileno())
                self._used = False
            return self._connection


class Workers:
    """Several workers, of which as many start as there is work for at a time."""

    def __init__(self, jobs: int) -> None:
        self._workers = [Worker() for _ in range(jobs)]
        self._idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(jobs)

    def map(
        self,
        function: Callable[[Item], Value],
        items: Iterable[Item],
        *,
        timeout: float | None = None,
        ordered: bool = True,
    ) -> Iterator[Value | Ended]:
        """The function of every item, begun in their order; each value as soon as it is there, and
        if ``ordered`` those before it."""

        def call(worker: Worker, item: Item) -> Value | Ended:
            return worker.call(function, item, timeout=timeout)

        return self.each(call, items, ordered=ordered)

    def each(
        self, task: Callable[[Worker, Item], Value], items: Iterable[Item], *, ordered: bool = True
    ) -> Iterator[Value]:
        """The same with a task of this process, which may call its worker several times. Tasks run
        in threads."""

        def run(item: Item) -> Value:
            worker = self._idle.get()
            try:
                return task(worker, item)
            finally:
                self._idle.put(worker)

        futures = [self._threads.submit(run, item) for item in items]
        return (future.result() for future in (futures if ordered else as_completed(futures)))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.stop()


# ---- The processes ----


def _start(connection: int) -> subprocess.Popen[bytes]:
    # Not by multiprocessing, which would run the user's __main__ again. A group of its own hears
    # no Ctrl-C, and ends whole. One thread each: together they keep the cores busy.
    code = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    code += f"from {__name__} import _serve; _serve(int(sys.argv[2]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(sys.path), str(connection)],
        stdin=subprocess.PIPE,
        pass_fds=[connection],
        process_group=0,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)


def _cause(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


_parent: Connection | None = None  # in a worker: the connection to the process that started it


def tell(doing: Any) -> None:
    """Say what is done next, in case the process does not outlive it; nothing outside a worker."""
    if _parent is not None:
        _parent.send(("doing", doing))


def _serve(connection: int) -> None:
    """What a worker does: calls, until the process that started it ends."""
    global _parent
    os.set_inheritable(connection, False)
    threading.Thread(target=_end_with_parent, args=(os.dup(0),), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.breakpointhook = _no_debugger
    _parent = Connection(connection)
    while True:
        try:
            call = _parent.recv_bytes()
        except EOFError:
            os._exit(0)  # quickly: memory may be corrupt
        try:
            function, arguments = pickle.loads(call)
            _parent.send(("begins", None))
            answer = pickle.dumps(("value", function(*arguments)))
        except BaseException as error:  # noqa: BLE001 - the other process raises it
            answer = _raised(error)
        sys.stdout.flush()
        _parent.send_bytes(answer)


def _raised(error: BaseException) -> bytes:
    """An error as an answer; one that cannot be sent, in words."""
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"in a worker:\n{text}")
        answer = pickle.dumps(("raised", error))
        pickle.loads(answer)
    except Exception:  # noqa: BLE001 - exceptions may have anything in them
        return pickle.dumps(("raised", RuntimeError(text)))
    return answer


def _end_with_parent(pipe: int) -> None:
    os.read(pipe, 1)  # nothing comes: it ends with the process that holds its other end
    os.killpg(0, signal.SIGKILL)


def _no_debugger(*_: Any, **__: Any) -> None:
    raise RuntimeError("no debugger in a worker: --jobs 1 runs everything in one process")
