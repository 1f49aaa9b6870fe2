"""What an exhibit of the gallery is: a healthy kernel's launch, and the faults planted in it.

A fault stands in a comment under the line that it changes, as the line that replaces it::

    x = tl.load(x_ptr + n, mask=n < N, other=-float("inf"))
    # fault neutral element of a sum: x = tl.load(x_ptr + n, mask=n < N, other=0.0)

The broken kernel comes from a copy of the file with that line in place: the rest of the copy, line
numbers included, is the healthy file.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import importlib.util
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from compare import Findings, Report, cross_check, debug

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Launch:
    """A launch and what it should leave in the tensors that it writes.

    Args:
        kernel, grid, args, constexprs: of the launch.
        right: parameter's name → what its tensor should hold; tensors left out may hold anything.
        options: of debug: max_ulps, bound, uninitialized.
    """

    def __init__(
        self,
        kernel: Any,
        grid: Any,
        args: Sequence[Any],
        right: dict[str, torch.Tensor],
        *,
        max_ulps: float = 1.0,
        bound: Callable[..., torch.Tensor] | None = None,
        uninitialized: Sequence[str] = (),
        **constexprs: Any,
    ) -> None:
        self.kernel, self.grid, self.args, self.right = kernel, grid, tuple(args), right
        self.judged: dict[str, Any] = {"max_ulps": max_ulps, "bound": bound}
        self.uninitialized, self.constexprs = uninitialized, constexprs
        self.alive: Any = None  # tensors whose addresses stand in a table

    def debug(self) -> Findings:
        return debug(
            self.kernel,
            self.grid,
            self.args,
            oracle=lambda: self.right,
            uninitialized=self.uninitialized,
            **self.judged,
            **self.constexprs,
        )

    def cross_check(self, name: str) -> Report:
        """The same launch as one side of a pair whose other side is the oracle's result."""
        at = self.kernel.arg_names.index(name)
        dtype = self.args[at].dtype

        def launched(*args: Any) -> torch.Tensor:
            self.kernel[self.grid](*args, **self.constexprs)
            return args[at]

        return cross_check(
            triton=launched,
            cuda=lambda *args: self.right[name].to(dtype),
            oracle=lambda *args: self.right[name],
            inputs=[self.args],
            dtype=dtype,
            **self.judged,
        )


class Fault(NamedTuple):
    """A line changed for the worse.

    Attributes:
        name: what is wrong, in a few words.
        caught: what finds it: "out of bounds", "assertion", "waits forever", "wrong values", or
            the beginning of a hazard's kind.
        says: words of the printed findings.
        line: its number.
        text: what the line becomes.
        in_kernel: whether the line runs on the device, and so can be named.
    """

    name: str
    caught: str
    says: tuple[str, ...]
    line: int
    text: str
    in_kernel: bool


@dataclass(frozen=True)
class Exhibit:
    """A function that launches a kernel for a dtype, and what may be changed in its file."""

    run: Callable[[torch.dtype], Launch]
    dtypes: tuple[torch.dtype, ...]
    faults: dict[str, Fault] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.run.__name__.replace("_", " ")

    @property
    def file(self) -> Path:
        return Path(self.run.__code__.co_filename)

    def healthy(self, dtype: torch.dtype) -> Launch:
        with _empty_is_filled():
            return self.run(dtype)

    def broken(self, fault: Fault, dtype: torch.dtype) -> Launch:
        run = getattr(_broken(self.file, fault), self.run.__name__).run
        with _empty_is_filled():
            launch: Launch = run(dtype)
        return launch


@contextlib.contextmanager
def _empty_is_filled() -> Iterator[None]:
    """Inside, torch.empty is full of NaN: its memory could be that of an earlier, right result."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def exhibit(
    faults: dict[str, tuple[str, ...]], dtypes: Sequence[torch.dtype] = FLOATS
) -> Callable[[Callable[[torch.dtype], Launch]], Exhibit]:
    """Make an exhibit of a function of a dtype that returns a launch.

    Args:
        faults: name → by what it is caught, and words of the findings.
        dtypes: with which the kernel is of use; the first is the one that every test run tries.
    """

    def make(run: Callable[[torch.dtype], Launch]) -> Exhibit:
        file = Path(run.__code__.co_filename)
        found = {name: _fault(file, name, *expected) for name, expected in faults.items()}
        return Exhibit(run, tuple(dtypes), found)

    return make


PLANTED = re.compile(r"\s*# fault ([^:]+):(?: (.*))?")
CONTINUED = re.compile(r"\s*#    (\S.*)")  # by lines that are indented


@functools.cache
def planted(file: Path) -> dict[str, tuple[int, str]]:
    """The faults in a file's comments: name → number and text of the line that changes."""
    found: dict[str, tuple[int, str]] = {}
    line, last = 0, ""
    for number, text in enumerate(file.read_text().splitlines(), 1):
        if match := PLANTED.fullmatch(text):
            assert match[1] not in found, f"{file}:{number}: two faults of one name"
            last = match[1]
            found[last] = line, match[2] or ""
        elif last and (match := CONTINUED.fullmatch(text)):
            found[last] = line, f"{found[last][1]} {match[1]}".lstrip()
        else:
            line, last = number, ""
    return found


@functools.cache
def _device_lines(file: Path) -> set[int]:
    """The lines of jit functions, their decorators left out."""
    lines: set[int] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and any(
            ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list
        ):
            assert node.end_lineno is not None
            lines.update(range(node.lineno, node.end_lineno + 1))
    return lines


def _fault(file: Path, name: str, caught: str, *says: str) -> Fault:
    line, text = planted(file)[name]
    return Fault(name, caught, says, line, text, line in _device_lines(file))


@functools.cache
def _folder() -> Path:
    """For the copies, of which findings show lines: it stays to the end."""
    folder = tempfile.TemporaryDirectory(prefix="gallery_")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _broken(file: Path, fault: Fault) -> ModuleType:
    """The file's module with the fault in it."""
    lines = file.read_text().splitlines()
    old = lines[fault.line - 1]
    lines[fault.line - 1] = old[: len(old) - len(old.lstrip())] + fault.text
    copy = _folder() / fault.name.replace(" ", "_") / file.name
    copy.parent.mkdir(exist_ok=True)
    copy.write_text("\n".join(lines) + "\n")
    # A copy of the same name was made for another dtype: the decorators of both read the comments.
    spec = importlib.util.spec_from_file_location(f"{file.stem}_{fault.name}", copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- inputs and tolerances ----


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(low: int, high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """int32, low included and high not."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int32)


def near(
    dtype: torch.dtype, magnitude: float | torch.Tensor = 1.0, unit: float = 2.0**-21
) -> Callable[..., torch.Tensor]:
    """The bound of a result that is rounded to dtype once, after steps in float32.

    ``magnitude`` is that of the numbers on the way, ``unit`` how far they may be off, for each.
    """
    info = torch.finfo(dtype)
    return lambda reference, *_: info.eps * reference.abs() + info.tiny + unit * magnitude


def ulps(dtype: torch.dtype, steps: float) -> float:
    """max_ulps of a result that float32 keeps to ``steps`` ulps; fewer bits hide these."""
    return steps if dtype == torch.float32 else 1.0
