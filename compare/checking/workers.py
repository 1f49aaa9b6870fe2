"""Processes for functions that may crash or hang: kernels under test, on the host or a GPU.

A :class:`Worker` is one process that runs call after call. The first call starts it, without a fork
of this process; the next call after its death starts it again. :class:`Workers` distribute work::

    with Workers(jobs) as workers:
        for found in workers.map(function, items, timeout=60):
            if isinstance(found, Ended):
                ...  # crashed, or did not end in time

Functions, arguments and results are pickled, so a function must be defined in a module other than
``__main__``. An exception in the worker is raised by the call. A worker ends when the process that
started it ends, however that happens.
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
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Ended:
    """A call without a result, because its process ended.

    Attributes:
        how: in words: "crashed: SIGSEGV", or "did not end within 300 s".
        doing: the last argument of :func:`tell`.
        late: whether it was killed at the time limit.
        fresh: whether this was the first call of the process, so no earlier call is to blame.
    """

    how: str
    doing: Any
    late: bool
    fresh: bool


class Closed(Exception):
    """The workers are closed and take no calls."""


class Worker:
    """One process. Only :meth:`close` may be called from another thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._used = False
        self._closed = False
        self._lock = threading.Lock()

    def call(
        self, function: Callable[..., Value], *arguments: Any, timeout: float | None = None
    ) -> Value | Ended:
        """The function's result, or how its process ended. The timeout counts from the function's
        start, because starting a process and importing may take long."""
        connection = self._started()
        fresh, self._used = not self._used, True
        try:
            said, value = self._answer(connection, (function, arguments), timeout, fresh)
        except BaseException:  # such as Ctrl-C: the pending answer must not reach the next call
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
        """End the process, if there is one. Returns its exit status. The next call starts
        another."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is None or connection is None:
            return 0
        _kill(process)  # also ends the children of a process that has ended
        status = process.wait()
        connection.close()
        assert process.stdin is not None
        process.stdin.close()
        return status

    def close(self) -> None:
        """End the process for good, from any thread. A running call raises Closed."""
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
    """Several workers; only as many start as there is work for."""

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
        """The function's value for each item. Calls start in the items' order. Values are yielded
        as they arrive or, if ``ordered``, in the items' order."""

        def call(worker: Worker, item: Item) -> Value | Ended:
            return worker.call(function, item, timeout=timeout)

        return self.each(call, items, ordered=ordered)

    def each(
        self, task: Callable[[Worker, Item], Value], items: Iterable[Item], *, ordered: bool = True
    ) -> Iterator[Value]:
        """The same for a task that runs in a thread of this process and may call its worker several
        times."""

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
    # Not multiprocessing: it would run the user's __main__ again. An own process group gets no
    # Ctrl-C and can be killed whole. One thread each, since together they use all cores.
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
    """Report what is done next, in case the process crashes. Does nothing outside a worker."""
    if _parent is not None:
        _parent.send(("doing", doing))


def _serve(connection: int) -> None:
    """The main loop of a worker; ends when the process that started it ends."""
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
            os._exit(0)  # without clean-up: memory may be corrupt
        try:
            function, arguments = pickle.loads(call)
            _parent.send(("begins", None))
            answer = pickle.dumps(("value", function(*arguments)))
        except BaseException as error:  # noqa: BLE001 - the other process raises it
            answer = _raised(error)
        sys.stdout.flush()
        _parent.send_bytes(answer)


def _raised(error: BaseException) -> bytes:
    """An exception as an answer; its text if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"in a worker:\n{text}")
        answer = pickle.dumps(("raised", error))
        pickle.loads(answer)
    except Exception:  # noqa: BLE001 - exceptions may have anything in them
        return pickle.dumps(("raised", RuntimeError(text)))
    return answer


def _end_with_parent(pipe: int) -> None:
    os.read(pipe, 1)  # nothing is ever sent: returns when the other process ends
    os.killpg(0, signal.SIGKILL)


def _no_debugger(*_: Any, **__: Any) -> None:
    raise RuntimeError("no debugger in a worker: --jobs 1 runs everything in one process")
