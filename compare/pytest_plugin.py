"""The pytest plugin: the fixtures cross_check and gpu_benchmark, two markers, and a debugger.

It is installed with the package. It has no effect on tests that do not use it; torch and triton are
imported for the first test that does. ``-p no:compare.pytest_plugin`` turns it off.

``@pytest.mark.gpu_only``: the test needs a CUDA device; without one it is skipped.
``@pytest.mark.interpreted_only``: the test function runs inside ``triton_kernels.interpret()`` on
every machine; its Triton kernels take CPU tensors and are never compiled.

``--kernel-pdb``: if a test fails, Python's debugger opens inside the interpreted kernel that raised
the error, or in the program whose result compare.debug or cross_check found wrong.
``--kernel-debug``: if a test fails by cross_check, print what compare.debug finds out.
``--kernel-program X,Y,Z`` and ``--kernel-break FILE:LINE``: stop in one program of every
interpreted launch of a test.
"""

from __future__ import annotations

import contextlib
import functools
import re
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from compare.timing import fixtures
from compare.timing.fixtures import gpu_benchmark  # noqa: F401 - a fixture of this plugin

if TYPE_CHECKING:
    from compare.debugging.stepping.breakpoints import Line
    from compare.debugging.stepping.failures import Again
    from compare.debugging.stepping.sessions import Session
    from compare.user_kernels.cross_checking import Report
    from triton_kernels.interpreter import Program

MARKERS = {
    "gpu_only": "the test needs a CUDA device; without one it is skipped.",
    "interpreted_only": (
        "the test runs inside triton_kernels.interpret() on every machine: "
        "its Triton kernels take CPU tensors and are never compiled."
    ),
}


@pytest.fixture(scope="session")
def cross_check(pytestconfig: pytest.Config) -> Callable[..., Report]:
    """Check a Triton kernel and its CUDA twin against an oracle. After a mismatch the test fails
    with the report.

    cross_check(triton=f, cuda=g, oracle=lambda x: x.double().sin(), inputs=[(x,)])

    It takes the arguments of compare.cross_check and returns its Report.
    """
    from compare.user_kernels import cross_checking

    @functools.wraps(cross_checking.cross_check)
    def check(**arguments: Any) -> Report:
        __tracebackhide__ = True
        report = cross_checking.cross_check(**arguments)
        if report:
            return report
        told = str(report).removeprefix("FAIL: ")
        if report.failed is not None and pytestconfig.getoption("kernel_debug"):
            told += f"\n\n{report.debug()}"
        elif report.failed is not None:
            told += "\npytest --kernel-debug says where it went wrong, --kernel-pdb steps there"
        pytest.fail(told)

    return check


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--benchmark``, which pytest-benchmark lacks, and the debugger's options."""
    group = parser.getgroup("kernels", "GPU kernels")
    group.addoption(
        "--benchmark",
        action="store_true",
        help="run the tests that use gpu_benchmark or pytest-benchmark's own fixture, and nothing "
        "else; needs pytest-benchmark",
    )
    group.addoption(
        "--kernel-pdb",
        action="store_true",
        help="if a test fails, open Python's debugger inside the interpreted Triton kernel "
        "that raised the error, or whose result compare.debug or cross_check found wrong",
    )
    group.addoption(
        "--kernel-debug",
        action="store_true",
        help="if the Triton side fails cross_check, print what compare.debug finds out: "
        "the program, the line, the variables on the way",
    )
    group.addoption(
        "--kernel-program",
        metavar="X,Y,Z",
        help="stop in this program of every interpreted launch, at its first line or at the lines "
        "of --kernel-break",
    )
    group.addoption(
        "--kernel-break",
        action="append",
        metavar="FILE:LINE",
        help="stop at this line of a kernel, in the program of --kernel-program, or else in the "
        "first program of a launch that reaches the line",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers: ``--strict-markers`` accepts them, ``--markers`` lists them."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    if any(config.getoption(name, None) for name in _KernelDebugger.OPTIONS):
        config.pluginmanager.register(_KernelDebugger(config), "compare.kernel_debugger")


def _marked(item: pytest.Item, name: str) -> bool:
    """Whether the test has this plugin's marker. If a repository registers a marker of this name
    itself, that one is meant."""
    if item.get_closest_marker(name) is None:
        return False
    registered = [re.split("[:(]", line)[0].strip() for line in item.config.getini("markers")]
    return registered.count(name) == 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """gpu_only, as pytest's own skip marker: it reports the test's line, not this file's."""
    fixtures.prepare(config, items)
    for item in items:
        if _marked(item, "gpu_only"):
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="gpu_only: no CUDA device"))


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    """Say how many benchmarks are deselected, and how to run them."""
    count = config.stash.get(fixtures.LEFT_OUT, 0)
    return f"{count} GPU benchmarks left out: pytest --benchmark runs them" if count else ""


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """A hook of pytest-benchmark, if that is installed: add GPU and versions to its files."""
    fixtures.describe(config, machine_info)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """interpreted_only: interpret the test function, but not its fixtures, which other tests may
    share."""
    if not _marked(item, "interpreted_only"):
        return (yield)
    import triton_kernels

    with triton_kernels.interpret():
        return (yield)


# The modules that run an interpreted kernel; then also Triton's modules that these call.
_INTERPRETERS = ("triton_kernels.interpreter.", "triton.runtime.interpreter")
_MACHINERY = (*_INTERPRETERS, "triton.runtime.", "triton.language.")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """For an error in an interpreted kernel, pytest shows the kernel's line without the
    interpreter's frames. ``--full-trace`` shows all frames."""
    errors = [] if call.excinfo is None else [call.excinfo.value]
    for error in errors:
        errors += [e for e in (error.__cause__, error.__context__) if e and e not in errors]
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if f"{frame.f_globals.get('__name__')}.".startswith(_MACHINERY):
                frame.f_globals.setdefault("__tracebackhide__", _in_a_kernel)
    return (yield)


def _in_a_kernel(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether the error was raised inside an interpreter."""
    modules = (entry.frame.f_globals.get("__name__") for entry in excinfo.traceback)
    return any(f"{module}.".startswith(_INTERPRETERS) for module in modules)


class _KernelDebugger:
    """Implements --kernel-pdb, --kernel-program and --kernel-break; registered if one is given."""

    OPTIONS = ("kernel_pdb", "kernel_program", "kernel_break")

    def __init__(self, config: pytest.Config) -> None:
        if config.getoption("dist", "no") != "no":
            raise pytest.UsageError(
                "a kernel's debugger needs the terminal, which pytest-xdist's workers do not "
                "have: add -n 0"
            )
        self._config = config
        self._lines: list[Line] = []
        self._program: Program | None = None
        self._noted: list[Again] = []
        self._fresh = True  # whether the test has not had a prompt yet
        if text := config.getoption("kernel_program"):
            words = text.split(",")
            if len(words) > 3 or not all(word.strip().isdecimal() for word in words):
                raise pytest.UsageError(f"--kernel-program {text}: up to three numbers, as 1,0,0")
            x, y, z = (*map(int, words), 0, 0)[:3]
            self._program = x, y, z

    def pytest_collection_finish(self) -> None:
        """Find the lines to stop at: now the tests' modules are loaded."""
        from compare.debugging.stepping import breakpoints

        try:
            lines = self._config.getoption("kernel_break") or []
            self._lines = [breakpoints.resolved(text) for text in lines]
        except ValueError as error:
            raise pytest.UsageError(f"--kernel-break {error}") from None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """Stop in programs of the test's launches; record failures that can be run again."""
        from compare.debugging.stepping import failures

        self._fresh = True
        session = self._session()
        try:
            with failures.noting() as self._noted, self._stopping(session):
                return (yield)
        finally:
            self._end(session)

    @pytest.hookimpl(tryfirst=True)
    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        """Open the debugger in the kernel that made the test fail."""
        if not self._config.getoption("kernel_pdb") or call.excinfo is None:
            return
        session = self._session()
        if not session.post_mortem(call.excinfo.value) and call.when == "call" and self._noted:
            self._noted[-1](session)
        self._end(session)

    def _session(self) -> Session:
        from compare.debugging.stepping import sessions

        first = self._program is not None and not self._lines
        return sessions.Session(self._lines, first, self._prompting)

    @contextlib.contextmanager
    def _stopping(self, session: Session) -> Iterator[None]:
        if self._program is None and not self._lines:
            yield
            return
        from compare.debugging.stepping import sessions
        from triton_kernels import interpreter

        with session.open() as debugger:
            step = sessions.Step(session, debugger, self._program)
            try:
                with interpreter.watched(step):
                    yield
            finally:
                if step.grids and not step.seen:
                    grids = ", ".join(map(str, dict.fromkeys(step.grids)))
                    text = f"--kernel-program {self._program}: no launch of this test has that"
                    text += f" program; the grids are {grids}"
                    warnings.warn(pytest.PytestWarning(text), stacklevel=1)

    @contextlib.contextmanager
    def _prompting(self, debugger: Any) -> Iterator[None]:
        """Suspend pytest's capturing during a prompt, as pytest's own debugger does."""
        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend(in_=True)
        if self._fresh:
            self._fresh = False
            print()
        self._config.hook.pytest_enter_pdb(config=self._config, pdb=debugger)
        try:
            yield
        finally:
            self._config.hook.pytest_leave_pdb(config=self._config, pdb=debugger)
            if capture is not None:
                capture.resume()

    def _end(self, session: Session) -> None:
        if session.quit:
            pytest.exit("the kernel's debugger was quit")
