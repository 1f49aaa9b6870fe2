"""The activations by name: those of csrc/activations.cuh, and those registered by users.

The shipped libraries do not have registered activations. So the text of a registered activation is
written to a header in the cache, beside a source that includes the shipped source and this header.
The first call that names the activation builds that source as another library with the same
launchers.
"""

from __future__ import annotations

import functools
import hashlib
import keyword
import re
from pathlib import Path
from typing import Any, NamedTuple

from cuda_reference import _arguments, _build, _compilers, _storage


class Activation(NamedTuple):
    """A record of csrc/activations.cuh: its number, its struct, and the struct's base: OfArgument,
    OfResult or Straight."""

    number: int
    record: str
    derived: str


def _records() -> dict[str, Activation]:
    """The records by name, in the order of their numbers."""
    text = (_compilers.CSRC / "activations.cuh").read_text("utf-8")
    derived = dict(re.findall(r"^struct (\w+) : (\w+) \{", text, re.M))
    listed = re.findall(r"^  CASE\((\d+), (\w+), __VA_ARGS__\)", text, re.M)
    return {
        re.sub(r"\B(?=[A-Z])", "_", record).lower(): Activation(int(n), record, derived[record])
        for n, record in listed
    }


ACTIVATIONS = _records()
ACTS = tuple(ACTIVATIONS)
# STRAIGHT: piecewise linear. BY_RESULT: the derivative is computed from the result; "none" needs
# neither argument nor result.
STRAIGHT = tuple(act for act, each in ACTIVATIONS.items() if each.derived == "Straight")
BY_RESULT = tuple(
    act for act, each in ACTIVATIONS.items() if each.derived != "OfArgument" and act != "none"
)

REGISTERED: dict[str, str] = {}


def register_activation(name: str, cuda: str) -> None:
    """Register an activation of your own for every ``act=``: the CUDA twin of
    :func:`triton_kernels.register_activation`.

    The text defines ``forward`` and ``derivative``: act(x) and act'(x) of the pre-activation x.
    Both are called with float, or double for float64 tensors, and return the same type. It may
    define ``drops``, called likewise: where it is true the gradient is 0 for any gradient of the
    result, even an infinite one or NaN. CPU tensors run the same text. It is compiled at the first
    call that names the activation. Registering the same text again is allowed, because modules may
    be reloaded.

    Args:
        name: an identifier that no activation has.
        cuda: CUDA C++ of device functions, without ``#include``.

    Raises:
        TypeError: ``cuda`` is no string.
        ValueError: name is no identifier, or is taken; the text has no such functions.

    Example:
        >>> cuda_reference.register_activation("softsign", '''
        ... template <class C> __device__ C forward(C x) { return x / (C(1) + fabs(x)); }
        ... template <class C> __device__ C derivative(C x) {
        ...   return C(1) / ((C(1) + fabs(x)) * (C(1) + fabs(x)));
        ... }''')
        >>> y = cuda_reference.linear_act(x, weight, bias, act="softsign")
    """
    op = "register_activation"
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{op}(): argument 'name' must be an identifier, but got {name!r}")
    if not isinstance(cuda, str):
        raise TypeError(f"{op}(): argument 'cuda' must be a str, but got {type(cuda).__name__}")
    for function in ("forward", "derivative"):
        if not _defines(function, cuda):
            raise ValueError(f"{op}(): argument 'cuda' defines no function '{function}'")
    if name in ACTS or REGISTERED.get(name, cuda) != cuda:
        taken = ", ".join((*ACTS, *REGISTERED))
        raise ValueError(f"{op}(): the name {name!r} is taken; the activations are {taken}")
    REGISTERED[name] = cuda


def _defines(function: str, cuda: str) -> bool:
    return re.search(rf"\b{function}\s*\(", cuda) is not None


def check(op: str, act: Any) -> None:
    """Raise ValueError unless ``act`` is the name of an activation."""
    _arguments.check_choice(op, "act", act, (*ACTS, *REGISTERED))


def number(act: str) -> int:
    """The kernels' number for an activation; -1 for a registered one."""
    return ACTIVATIONS[act].number if act in ACTIVATIONS else -1


def library(stem: str, act: str, target: _compilers.Target, part: str | None = None) -> Any:
    """The library of csrc/<stem>.cu for ``target`` that has the activation, or of a part."""
    if act in ACTS:
        return _build.library(stem, target, part=part)
    folder, name = _unit(stem, act, REGISTERED[act])
    return _build.library(name, target, csrc=folder, part=part)


@functools.cache
def _unit(stem: str, act: str, text: str) -> tuple[Path, str]:
    """A csrc folder with one source, the shipped one plus the activation, and the source's name."""
    shipped = _compilers.CSRC / f"{stem}.cu"
    name, header = f"{stem}_{act}", f"{act}.cuh"
    source = (
        # The key of a library covers no other .cu, so the shipped source is named by its hash.
        f"// sha256 {hashlib.sha256(shipped.read_bytes()).hexdigest()}\n"
        f'#define REGISTERED_ACTIVATION "{header}"\n'
        f"{'#define REGISTERED_DROPS' if _defines('drops', text) else ''}\n"
        f'#include "{shipped.name}"\n'
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = _compilers.cache_directory("activations", f"{name}-{digest}")
    files = {folder / header: f"{text}\n".encode(), folder / f"{name}.cu": source.encode()}
    if not all(file.is_file() and file.read_bytes() == made for file, made in files.items()):
        with _build.workspace(_compilers.cache_directory()) as work:
            _storage.write(files, work)
    return folder, name
