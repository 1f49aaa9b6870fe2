"""Python's debugger inside a kernel, in one program of a launch and nowhere else."""

from __future__ import annotations

import bdb
import contextlib
import pdb
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from compare.checking.stores import holds
from compare.debugging.findings import regions
from compare.debugging.findings.traces import WIDTH
from compare.debugging.stepping.breakpoints import Line, resolved, statement
from triton_kernels import interpreter
from triton_kernels.interpreter import Argument, Launch, Observer, Program, Several, post_mortem

Quit = bdb.BdbQuit  # what a kernel raises when the user ends the session
HELP = (
    "n next line · s into a jit function · c on · l source · p x a tensor · p tl.sum(x) computes · "
    "w where · q ends"
)

Around = Callable[[pdb.Pdb], AbstractContextManager[Any]]


def shown(tensor: Any) -> str:
    """A kernel's tensor as a prompt prints it: dtype, shape, and its numbers or targets."""
    held = post_mortem.contents(tensor)
    head = f"{held.dtype}{list(held.shape) or ''}"
    if held.width:
        return f"{head} {_pointers(held.values, held.width, held.arguments)}"
    with np.printoptions(precision=5, threshold=300, edgeitems=3, linewidth=WIDTH):
        text = str(held.values)
    return f"{head} {text}" if "\n" not in text else f"{head}\n{text}"


def _pointers(addresses: np.ndarray, width: int, arguments: Sequence[Argument]) -> str:
    """The targets of a tile of pointers; those outside of the tensor are counted."""
    if len(arguments) > 1:
        arguments = [a for a in arguments if holds(a, addresses)]
    if len(arguments) != 1:
        return f"addresses {addresses.min():#x} to {addresses.max():#x}"
    (argument,) = arguments
    outside = argument.outside(addresses, width)
    count = int(outside.sum())
    if not count:
        return regions.touched(argument, addresses, ~outside).of(argument.name)
    first = argument.describe(int(addresses[outside].flat[0]))
    if count == addresses.size:
        return f"outside: {first}"
    inside = regions.touched(argument, addresses, ~outside).of(argument.name)
    return f"{inside}; {count} of {addresses.size} outside, the first at {first}"


class _Pdb(pdb.Pdb):
    """pdb with a kernel's frames only, which traces one program at a time.

    ``around`` is entered while a prompt is open.
    """

    def __init__(self, around: Around) -> None:
        super().__init__(nosigint=True)
        self.banner: list[str] = []  # printed before the next prompt
        self.prompts, self.quitting = 0, False
        self._said = ""
        self._around = around
        self._tracing, self._first = False, True
        self._before: Any = None
        self._raised: BaseException | None = None
        # Each frame's statement, and whether a prompt was opened for it: a statement of several
        # lines is one step.
        self._at: dict[FrameType, tuple[int, bool]] = {}

    # one program

    def begin(self, first: bool) -> None:
        """Trace the next program; stop at its first line, or at breakpoints only."""
        self.end()
        self.reset()
        self._first, self._tracing, self._before = first, True, sys.gettrace()
        sys.settrace(self._enter)

    def end(self) -> None:
        """Restore the previous trace function."""
        if self._tracing:
            self._tracing = False
            self._at.clear()
            sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self._tracing:
            return None
        if post_mortem.is_program(frame):
            return self._leave
        return self.dispatch_call(frame, arg)

    def _leave(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self.end()
        return self._leave

    def dispatch_call(self, frame: FrameType, arg: Any) -> Any:
        if not post_mortem.is_kernel(frame):
            return None
        if self.botframe is None and not self._first:
            self.botframe = frame.f_back
            self._set_stopinfo(self.botframe, None, -1)  # type: ignore[attr-defined]
        super().dispatch_call(frame, arg)
        return self.trace_dispatch

    def dispatch_line(self, frame: FrameType) -> Any:
        line, file = frame.f_lineno, self.canonic(frame.f_code.co_filename)
        first = statement(file, line) or line
        before, prompted = self._at.get(frame, (0, False))
        if before != first:
            self._at[frame] = first, False
        elif prompted or line not in self.breaks.get(file, ()):
            return self.trace_dispatch
        return super().dispatch_line(frame)

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        self._at.pop(frame, None)
        return super().dispatch_return(frame, arg)

    def user_line(self, frame: FrameType) -> None:
        self._at[frame] = self._at[frame][0], True
        super().user_line(frame)

    def stop_here(self, frame: FrameType) -> bool:
        return post_mortem.is_kernel(frame) and super().stop_here(frame)

    def set_continue(self) -> None:
        super().set_continue()
        if not self.breaks:  # super has turned tracing off
            self.end()

    def set_quit(self) -> None:
        super().set_quit()
        self.end()

    # the prompt

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        self._raised = exc_info[1]
        super().user_exception(frame, exc_info)

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        with self._around(self), post_mortem.prompting(shown):
            self.stdin, self.stdout = sys.stdin, sys.stdout  # the current ones: pytest swaps them
            if self.banner and self.banner[0] != self._said:
                self._said = self.banner[0]
                self.message("\n".join(self.banner))
            self.banner, self.prompts = [], self.prompts + 1
            super().interaction(frame, traceback)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> Any:
        stack, _ = super().get_stack(f, t)
        kernels = [entry for entry in stack if post_mortem.is_kernel(entry[0])]
        return kernels, max(0, len(kernels) - 1)

    def do_run(self, arg: str) -> None:
        """Refused: there is only one program to step through."""
        self.error("a kernel cannot be restarted from within")

    do_restart = do_run

    def post_mortem(self, error: BaseException) -> None:
        """Open a prompt where a kernel raised the error, unless there was one already."""
        where = post_mortem.stopped(error.__traceback__)
        if where is None or error is self._raised or isinstance(error, bdb.BdbQuit):
            return
        self.end()
        self.reset()
        text = f"{type(error).__name__}: {error}"
        said = banner(where.kernel, where.program, where.grid, [text])
        self.banner = [text] if said[0] == self._said else said
        with post_mortem.resumed(where):
            self.interaction(None, error.__traceback__)


def banner(
    kernel: str, program: Program, grid: Sequence[int], why: Sequence[str] = ()
) -> list[str]:
    """The first lines of a prompt: where it is, why, and what to type."""
    return [f"── {kernel}: program {program} of {tuple(grid)} ──", *why, HELP]


class Session:
    """A debugging session: the lines to stop at, and whether to stop at a program's first line.

    Attributes:
        quit: whether the user has ended it.
        reached: whether a prompt was opened.
    """

    def __init__(
        self, lines: Sequence[Line] = (), first: bool = True, around: Around = nullcontext
    ) -> None:
        self.lines, self.first, self._around = lines, first, around
        self.quit = self.reached = False

    @contextlib.contextmanager
    def open(self) -> Iterator[_Pdb]:
        """A debugger with the breakpoints set.

        bdb keeps breakpoints for the whole process, so those of this session are removed again.
        """
        known = set(filter(None, bdb.Breakpoint.bpbynumber))
        debugger = _Pdb(self._around)
        for file, line in self.lines:
            debugger.set_break(file, line)
        try:
            yield debugger
        finally:
            debugger.end()
            self.quit |= debugger.quitting
            self.reached |= debugger.prompts > 0
            for each in set(filter(None, bdb.Breakpoint.bpbynumber)) - known:
                each.deleteMe()

    @contextlib.contextmanager
    def stepping(
        self, observer: Observer, launch: int, program: Program, why: Sequence[str]
    ) -> Iterator[None]:
        """Interpret the launches within this context; debug that program."""
        with self.open() as debugger:
            step = Step(self, debugger, program, launch, why)
            try:
                with interpreter.interpreting(Several(observer, step)):
                    yield
            except Exception as error:
                debugger.end()
                if not debugger.quitting:
                    debugger.post_mortem(error)
                raise

    def post_mortem(self, error: BaseException) -> bool:
        """Open a prompt where a kernel raised the error. Returns false if no kernel did."""
        with self.open() as debugger:
            debugger.post_mortem(error)
            return debugger.prompts > 0


class Step(Observer):
    """Stops in one program: of one launch, or of every launch if ``launch`` is None.

    Without a ``program`` it stops in the first that reaches a breakpoint.

    Attributes:
        grids: of the launches so far.
        seen: whether one of them has the program.
    """

    def __init__(
        self,
        session: Session,
        debugger: _Pdb,
        program: Program | None,
        launch: int | None = None,
        why: Sequence[str] = (),
    ) -> None:
        self._session, self._pdb = session, debugger
        self._wanted, self._why, self._number = (launch, program), why, -1
        self._launch: Launch | None = None
        self._prompts = 0  # the number before this launch
        self.grids: list[tuple[int, ...]] = []
        self.seen = False

    def launch(self, launch: Launch) -> None:
        self._pdb.end()
        self._number += 1
        self._launch, self._prompts = launch, self._pdb.prompts
        self.grids.append(launch.grid)

    def wants(self, program: Program) -> bool:
        number, wanted = self._wanted
        here = number in (None, self._number) and wanted in (None, program)
        self._pdb.end()
        self.seen |= here
        launch, done = self._launch, self._pdb.prompts > self._prompts or self._pdb.quitting
        if launch and here and not done:
            self._pdb.banner = banner(launch.kernel, program, launch.grid, self._why)
            self._pdb.begin(self._session.first)
        return True


def session(first: bool, breakpoints: Sequence[str]) -> Session | None:
    """A session that stops there; None if none was requested.

    Raises:
        ValueError: a breakpoint is no FILE:LINE of a kernel.
    """
    lines = [resolved(text) for text in breakpoints]
    return Session(lines, first) if first or lines else None
