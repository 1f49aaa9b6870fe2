"""Starts a compiled kernel by Triton's C launcher, without Triton's Python code. All private API of
Triton for that is here.

Before each start, Triton's Python code reads the device, the stream and the hooks, and makes
descriptors. That takes as long as a call of torch. Versions 3.6 and 3.7 are supported, which pass
arguments differently. For kernels of other versions :func:`start` and :func:`pieces` return None,
and launches go through Triton's own runner. triton_kernels._replay tests on each device that a
start by the C launcher gives the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import FunctionType
from typing import Any

import triton
from triton import knobs

# Called with (grid x, y, z, stream, arguments); the arguments include the kernel's constants.
Start = Callable[[int, int, int, int, Any], None]

_RUN = triton.JITFunction.run  # tools replace it, to see or change every launch


def watched(kernel: Any) -> bool:
    """Whether something sees or changes every launch: hooks of Triton or of the kernel, or a
    replaced JITFunction.run."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(
        triton.JITFunction.run is not _RUN
        or kernel.pre_run_hooks
        or (enter is not None and getattr(enter, "calls", True))
        or (leave is not None and getattr(leave, "calls", True))
    )


def in_clusters(compiled: Any, programs: int) -> None:
    """Start a compiled kernel in clusters of so many programs from now on. In its code each is a
    program of its own, where what Triton itself compiles for clusters has one program for each.
    None is what a hook of Triton's compiler may leave of a kernel."""
    if compiled is not None:
        warps, _, *rest = compiled.packed_metadata
        compiled.packed_metadata = (warps, programs, *rest)


def start(compiled: Any) -> Start | None:
    """The start of a compiled kernel whose arguments are tensors, addresses, numbers and tuples of
    numbers. None if this version of Triton, or this kernel, is not supported."""
    try:
        run = compiled.run
        needs_scratch = run.global_scratch_size or run.profile_scratch_size
        if type(run).__name__ != "CudaLauncher" or needs_scratch:
            return None
        launch = _plain_launcher(run.launch)
        function, packed = compiled.function, compiled.packed_metadata
        grid_wide = run.launch_cooperative_grid, run.launch_pdl
        if hasattr(run, "arg_annotations"):  # from 3.7 on
            annotations, signature = run.arg_annotations, run.kernel_signature
            rest = (None, None, None, None, None, annotations, signature)

            def started(x: int, y: int, z: int, stream: int, args: Any) -> None:
                launch(x, y, z, stream, function, *grid_wide, packed, *rest, args)
        else:
            before = (function, *grid_wide, None, None, packed, None, None, None)

            def started(x: int, y: int, z: int, stream: int, args: Any) -> None:
                launch(x, y, z, stream, *before, *args)
    except (AttributeError, KeyError, TypeError):  # another version's
        return None
    return started


def _plain_launcher(launch: Any) -> Any:
    """The C launcher itself. With descriptors, Triton wraps it in a function."""
    return _enclosed(launch)["launcher"] if isinstance(launch, FunctionType) else launch


def _enclosed(function: Any) -> dict[str, Any]:
    """The variables that a closure captures: name → value."""
    cells = (cell.cell_contents for cell in function.__closure__)
    return dict(zip(function.__code__.co_freevars, cells))


class Map:
    """Makes a descriptor for the C launcher from a matrix's address. Descriptors are cached by
    address.

    Attributes:
        address: the address of the matrix of the given descriptor.
    """

    def __init__(self, descriptor: Any, meta: Any) -> None:
        self.address: int = descriptor.base.data_ptr()
        self._meta, self._like = meta, copy.copy(descriptor)
        self._like.base = None  # no tensor is kept alive
        self._made: dict[int, Any] = {}

    def __call__(self, address: int) -> Any:
        """The descriptor of the matrix at an address."""
        made = self._made.get(address)
        if made is None:
            if len(self._made) >= _MAPS:
                self._made.clear()
            made = self._made[address] = self.expanded(address)[0]
        return made

    def expanded(self, address: int) -> list[Any]:
        """All arguments into which Triton expands the descriptor, which is the first of them."""
        from triton.backends.nvidia import driver

        like = copy.copy(self._like)
        like.base = _Address(address)
        expanded: list[Any] = driver.make_tensordesc_arg(like, self._meta)
        return expanded


_MAPS = 64  # descriptors, of 128 bytes each, that a Map caches


class _Address:
    """Stands in for a tensor, of which Triton only reads the address."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def is_descriptor(value: Any) -> bool:
    """Whether the value is a descriptor of Triton or of Gluon."""
    return hasattr(value, "block_shape")


def pieces(compiled: Any, args: tuple[Any, ...]) -> list[Any] | None:
    """The arguments of a launch for the C launcher, with a :class:`Map` for each descriptor; None
    if this version of Triton, or this GPU, is not supported."""
    if not any(map(is_descriptor, args)):
        return list(args)
    try:
        metas = iter(_enclosed(compiled.run.launch)["tensordesc_meta"])
        taken: list[Any] = []
        for arg in args:
            if not is_descriptor(arg):
                taken.append(arg)
                continue
            meta = next(metas)
            if meta is None:  # a GPU without descriptors in hardware
                return None
            made = Map(arg, meta)
            taken += [made, *made.expanded(made.address)[1:]]
    except (AttributeError, KeyError, TypeError, StopIteration, ImportError):
        return None
    return taken
