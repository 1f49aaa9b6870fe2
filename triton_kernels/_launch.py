"""The launch path: which way a kernel runs, on which device.

CUDA tensors run compiled on their own device. Inside :func:`interpret`, or with
``TRITON_INTERPRET=1`` set before import, kernels run in Triton's interpreter, corrected by
:mod:`triton_kernels.interpreter`; then CPU tensors are accepted, too. Inside
:func:`triton_kernels.interpreter.cross_compile.compiling` kernels are only compiled.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from triton_kernels import _known_calls, _modes, _starting
from triton_kernels._gpu import H200, Gpu, like

# None in a torch without CUDA, where it is never called.
current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


@contextlib.contextmanager
def interpret(*, configuration: int | None = None) -> Iterator[None]:
    """Inside this context every Triton kernel runs in Triton's interpreter, on any machine.

    It works in a process that also runs compiled kernels, for this package's kernels and for any
    other ``@triton.jit`` kernel, on CPU tensors; CUDA tensors are copied to the host and back.
    The interpreter is Triton's own, corrected where it is silently wrong: bfloat16 arithmetic and
    rounding, fused multiply-add, ``input_precision``, libdevice, ``device_assert``. An access
    outside its tensor raises IndexError. A masked-off lane loaded without ``other=`` reads NaN.

    Args:
        configuration: of autotuned kernels the number, from 0, of the configuration that runs,
            among those that pruning leaves and that differ in more than options of the compiler.
            Past the last one the count begins again. By default the first one, or that of the
            context outside.

    Raises:
        ValueError: ``configuration`` is negative.

    Example:
        >>> with triton_kernels.interpret():
        ...     triton_kernels.square(torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 4., 9.])
    """
    from triton_kernels import interpreter  # not before it is asked for

    if configuration is not None and configuration < 0:
        says = f"argument 'configuration' counts from 0, but got {configuration}"
        raise ValueError(f"interpret(): {says}")
    with contextlib.ExitStack() as inside:
        if configuration is not None:
            inside.enter_context(_modes.configuration(configuration))
        inside.enter_context(interpreter.interpreting())
        yield


def interpreted(kernel: Any) -> bool:
    """Whether a launch of ``kernel`` would be interpreted now."""
    if _modes.interpreting():
        return True
    return type(kernel) is not triton.JITFunction and _modes.made_interpreted(kernel)


def check_device(op: str, device: torch.device, kernel: Any) -> None:
    """Raise RuntimeError for a device on which ``kernel`` cannot run now. On meta nothing is
    launched: only shapes are computed."""
    if device.type in ("cuda", "meta") or (device.type == "cpu" and interpreted(kernel)):
        return
    if _modes.compiling():
        return
    if device.type == "cpu":
        raise RuntimeError(
            f"{op}(): got CPU tensors, but Triton compiles for GPUs only. To run the kernel in "
            "Triton's interpreter, call it inside `with triton_kernels.interpret():`, or set "
            "TRITON_INTERPRET=1 before Python starts; otherwise move the tensors to 'cuda'"
        )
    raise RuntimeError(
        f"{op}(): device {device} is not supported; tensors must be on cuda, cpu or meta"
    )


OVERLAPPING = 90  # the first compute capability with programmatic dependent launch


def overlaps(kernel: Any, device: torch.device) -> bool:
    """Whether a launch of ``kernel`` may begin while the launch before it ends. That saves a
    microsecond. The kernel has to wait before it reads what the other one writes."""
    return not interpreted(kernel) and gpu(kernel, device).capability >= OVERLAPPING


def waiting(waits: bool) -> dict[str, bool]:
    """The constant WAITS of a kernel that calls gdc_wait() if it is true, and what Triton needs
    for such a launch."""
    return {"WAITS": True, "launch_pdl": True} if waits else {"WAITS": False}


_few: contextvars.ContextVar[int | None] = contextvars.ContextVar("multiprocessors", default=None)


@contextlib.contextmanager
def multiprocessors(number: int) -> Iterator[None]:
    """Inside, grids are chosen for a GPU with this number of multiprocessors. With few of them,
    each program has several tiles even of a small problem."""
    token = _few.set(number)
    try:
        with _known_calls.suspended():
            yield
    finally:
        _few.reset(token)


def gpu(kernel: Any, device: torch.device) -> Gpu:
    """The GPU on which ``kernel`` would run, or for which it is compiled. Interpreted and
    cross-compiled kernels get the number of multiprocessors of an H200."""
    if _modes.compiling():
        from triton_kernels.interpreter import cross_compile

        capability = cross_compile.capability()
        properties = Gpu(capability, H200.multiprocessors, like(capability).shared_memory)
    elif interpreted(kernel) or device.type == "meta":
        properties = H200
    else:
        properties = _properties(device)
    few = _few.get()
    if few is None:
        return properties
    return properties._replace(multiprocessors=few, name="")  # no name: nothing was measured for it


@functools.cache
def _properties(device: torch.device) -> Gpu:
    properties: Any = torch.cuda.get_device_properties(device)
    return Gpu(
        10 * properties.major + properties.minor,
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,
        properties.name,
    )


def bandwidth(device: torch.device) -> float:
    """A GPU's memory bandwidth in bytes/s as the driver reports it; 0 if it is unknown."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0.0
    properties: Any = torch.cuda.get_device_properties(device)
    kilohertz = getattr(properties, "memory_clock_rate", 0)  # two transfers per cycle
    return 2e3 * kilohertz * getattr(properties, "memory_bus_width", 0) / 8


class Recording:
    """The launches and memory of one call of an op.

    Attributes:
        launches: for each the kernel, the grid, the compiled kernel, and the arguments with the
            constants.
        workspaces: memory that the call allocates for itself.
        of_stream: memory that it shares with other calls on its stream.
    """

    def __init__(self) -> None:
        self.launches: list[tuple[Any, tuple[int, int, int], Any, tuple[Any, ...]]] = []
        self.workspaces: list[Tensor] = []
        self.of_stream: list[Tensor] = []


class _Recorder(threading.local):
    now: Recording | None = None


recorder = _Recorder()


@contextlib.contextmanager
def recording() -> Iterator[Recording]:
    """Record this thread's launches."""
    launched = recorder.now = Recording()
    try:
        yield launched
    finally:
        recorder.now = None


def workspace(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that only launches of one call use."""
    space = torch.empty(tuple(shape), dtype=dtype, device=device)
    if recorder.now is not None:
        recorder.now.workspaces.append(space)
    return space


class Launch:
    """A reusable launch: ``kernel[grid](*args, **meta)`` for arguments of one specialization.

    To find the compiled kernel, Triton looks at every argument of every launch: its dtype, its
    alignment, whether an integer is 1 or a multiple of 16. That takes several times as long as the
    start itself, so here it is done once per device. In all calls of a Launch, each argument must
    have the same :func:`specialization_key`, and integers on which Triton specialises the same
    :func:`divisibility`. Triton's settings (``triton.knobs``) at the first call count.

    A call may give the grid. An empty grid launches nothing. With a CLUSTER constant, how many
    programs a cluster has, the grid counts clusters.
    """

    __slots__ = ("_ready", "grid", "kernel", "meta")

    def __init__(self, kernel: Any, grid: tuple[int, ...], **meta: Any) -> None:
        self.kernel, self.meta = kernel, meta
        x, y, z, *_ = (*grid, 1, 1, 1)
        self.grid: tuple[int, int, int] = x, y, z
        self._ready: dict[torch.device, _Ready] = {}

    def __call__(
        self, device: torch.device, *args: Any, grid: tuple[int, int, int] | None = None
    ) -> None:
        """Launch on ``device``; inside the contexts for that, interpret or only compile the
        kernel."""
        grid = grid or self.grid
        if 0 in grid:
            return
        if _modes.compiling_thread is not None and _modes.compiling():  # mostly without a call
            from triton_kernels.interpreter import cross_compile

            cross_compile.launch(self.kernel, grid, *args, **self.meta)
        elif device.type == "meta":
            return
        elif interpreted(self.kernel):
            with interpret():
                self.kernel[grid](*args, **self.meta)
        elif device.index == current_device():  # the guard alone takes microseconds
            self._run(device, grid, args)
        else:
            with torch.cuda.device(device):
                self._run(device, grid, args)

    def _run(self, device: torch.device, grid: tuple[int, int, int], args: tuple[Any, ...]) -> None:
        usual = not _starting.watched(self.kernel)
        ready = self._ready.get(device)
        kind = None
        if ready is None and usual:  # of another Launch, for other sizes?
            kind = device, id(self.kernel), _constants(self.meta), kinds(args)
            ready, _ = _compiled.get(kind, (None, self))
            if ready is not None:
                self._ready[device] = ready
        if ready is None or not usual:
            if programs := self.meta.get("CLUSTER"):
                _starting.in_clusters(self.kernel.warmup(*args, grid=grid, **self.meta), programs)
            compiled = self.kernel[grid](*args, **self.meta)
            if compiled is None or not usual:
                return
            constants = tuple(self.meta[name] for name in self.kernel.arg_names[len(args) :])
            described = any(map(_starting.is_descriptor, args))
            start = None if described else _starting.start(compiled)
            ready = self._ready[device] = _Ready(compiled, constants, start)
            if len(_compiled) >= REMEMBERED:
                _compiled.clear()
            _compiled[kind] = ready, self
        elif ready.start is None:
            ready.compiled[grid](*args, *ready.constants)
        else:
            ready.start(*grid, current_stream(device.index), (*args, *ready.constants))
        if recorder.now is not None:
            every = (*args, *ready.constants)
            recorder.now.launches.append((self.kernel, grid, ready.compiled, every))


class _Ready(NamedTuple):
    """The compiled kernel, and the constants that follow a call's arguments. ``start`` is None if
    it is unknown, or if an argument is a descriptor."""

    compiled: Any
    constants: tuple[Any, ...]
    start: _starting.Start | None


# Everything that Triton's choice depends on → the compiled kernel. So a Launch for other sizes need
# not ask Triton. The Launch in the value keeps the objects alive whose ids are in the key.
_compiled: dict[Any, tuple[_Ready, Launch]] = {}


def _constants(meta: dict[str, Any]) -> tuple[Any, ...]:
    """A launch's constants and options as a key. Jit functions are represented by their ids,
    because hashing one takes longer than a launch."""
    return tuple([(k, id(v) if isinstance(v, triton.JITFunction) else v) for k, v in meta.items()])


def kinds(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """For each argument, a key with everything on which Triton's choice of a compiled kernel
    depends."""
    return tuple(map(_kind, arguments))


def _kind(argument: Any) -> Any:
    """The key of one argument. Arguments of unknown types get a key of their own, which equals no
    other."""
    if type(argument) is int:
        return divisibility(argument)
    if argument is None or isinstance(argument, (Tensor, float)):
        return specialization_key(argument)
    if isinstance(argument, tuple):
        return tuple([divisibility(n) if type(n) is int else _kind(n) for n in argument])
    kind = getattr(argument, "kind", None)  # our descriptors have it
    return object() if kind is None else kind


REMEMBERED = 4096  # the size of each cache of launches


def divisibility(n: int) -> int:
    """The key of an integer on which Triton specialises: whether it is 1 or a multiple of 16, and
    the width of its type."""
    if n == 1:
        return 1
    kind = 2 if n % 16 else 16
    if -(2**31) <= n < 2**31:
        return kind
    return kind + (1 if -(2**63) <= n < 2**63 else 2)  # 2: an unsigned type, or too large for any


def specialization_key(argument: Any) -> Any:
    """The key of a tensor (dtype and alignment), of None, or of a number on which Triton does not
    specialise: float, or whether an integer fits 32 bits."""
    if argument is None:
        return None
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return -(2**31) <= argument < 2**31
    return float
