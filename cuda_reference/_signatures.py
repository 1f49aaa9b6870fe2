"""What a csrc/<stem>.cu exports, read from its text: the elementwise ops that need no host code.

Each launcher of such a file is an op of its name:

    extern "C" int relu_scale_add(const Tensor* x, const Tensor* y, const Tensor* out, Scalar scale,
                                  cudaStream_t stream)

takes the tensors x and y, which broadcast, and the number scale. WITH_COMPUTE_TYPE in its body says
that it takes every dtype, WITH_FLOATING_TYPE that it takes the floating ones. The formula in the
comment at the head of the file, "relu_scale_add: out = …", becomes its docstring.

A second launcher beside it, of the same tensors and numbers, says that it has rungs (rungs.cuh):

    extern "C" int relu_scale_add_rung(const Call* call, const void* x, const void* y, void* out,
                                       Scalar scale, cudaStream_t stream)

And a launcher relu_scale_add_tensor, of the tensors x, y and scale, says that its number may be a
tensor, too.

This module imports nothing but Python's own, so that stubs can be written without torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

_SUFFIX = "_rung"
TENSOR = "_tensor"
_LAUNCHER = re.compile(r'^extern "C"\s+int\s+(\w+)\s*\(([^)]*)\)\s*\{(.*?)^\}', re.M | re.S)
_PARAMETERS = re.compile(
    r"((?:const Tensor\* \w+, ){1,3})const Tensor\* out, ((?:Scalar \w+, )*)cudaStream_t stream"
)
_RUNG = re.compile(
    r"const Call\* call, ((?:const void\* \w+, ){1,2})void\* out, "
    r"((?:Scalar \w+, )*)cudaStream_t stream"
)
_EXPECTED = (
    "(const Tensor* <operand>, [const Tensor* <operand>, …] const Tensor* out, "
    "[Scalar <number>, …] cudaStream_t stream); other launchers need a cuda_reference/ops/<op>.py"
)


@dataclass(frozen=True)
class Signature:
    """An elementwise op as its launcher declares it.

    Attributes:
        op: its name, and the launcher's.
        operands: the tensors, one to three.
        numbers: the Python numbers after them.
        floating: whether it takes floating dtypes only.
        formula: from the comment, or empty.
        rungs: whether it has them.
        of_tensors: whether each of the numbers may be a tensor.
    """

    op: str
    operands: tuple[str, ...]
    numbers: tuple[str, ...]
    floating: bool
    formula: str
    rungs: bool = False
    of_tensors: bool = False

    @property
    def number(self) -> str:
        """The annotation of a number."""
        return "Tensor | int | float" if self.of_tensors else "int | float"

    @property
    def docstring(self) -> str:
        """One line, as functions written by hand have it."""
        formula = f"{self.formula}: the" if self.formula else "The"
        variants = "its variants are rungs" if self.rungs else "it has no variants"
        return f"{formula} CUDA twin of :func:`triton_kernels.{self.op}`; {variants}."


def signatures(source: Path) -> list[Signature]:
    """The ops that a .cu exports.

    Raises:
        ImportError: there is none, or a launcher that is not of this form; the text names the file.
    """
    text = source.read_text(encoding="utf-8")
    launchers = _LAUNCHER.findall(text)
    if not launchers or len(launchers) != len(re.findall(r'\bextern "C"', text)):
        raise ImportError(f'{source}: expected every extern "C" to be int <op>{_EXPECTED}')
    rungs = {op: parameters for op, parameters, _ in launchers if op.endswith(_SUFFIX)}
    plain = [launcher for launcher in launchers if launcher[0] not in rungs]
    declared = {each[0]: _signature(source, text, *each) for each in plain}
    forms = {op for op in declared if op.endswith(TENSOR) and op[: -len(TENSOR)] in declared}
    ops = [
        replace(each, rungs=op + _SUFFIX in rungs, of_tensors=op + TENSOR in forms)
        for op, each in declared.items()
        if op not in forms
    ]
    for each in ops:
        if each.rungs:
            _same_parameters(source, each, rungs.pop(each.op + _SUFFIX))
        if each.of_tensors:
            _same_names(source, each, declared[each.op + TENSOR])
    if rungs:
        raise ImportError(f"{source}: {', '.join(rungs)} is a launcher of rungs of no op")
    return ops


def _same_names(source: Path, op: Signature, form: Signature) -> None:
    """Refuse a launcher for tensors in place of numbers that takes other things than the op, or in
    another order, or other dtypes."""
    every = (*op.operands, *op.numbers)
    if (form.operands, form.numbers, form.floating) != (every, (), op.floating):
        raise ImportError(
            f"{source}: {form.op} takes {form.operands} and numbers {form.numbers}, expected the "
            f"tensors {every} and no numbers, and the dtypes of {op.op}"
        )


def _same_parameters(source: Path, op: Signature, parameters: str) -> None:
    """Refuse a launcher of rungs that takes other things than the op's own, or in another order."""
    match = _RUNG.fullmatch(" ".join(parameters.split()))
    if match is None or tuple(map(_names, match.groups())) != (op.operands, op.numbers):
        raise ImportError(
            f"{source}: {op.op}{_SUFFIX} has parameters ({parameters}), expected (const Call* "
            f"call, const void* <operand>, … void* out, [Scalar <number>, …] cudaStream_t stream) "
            f"with those of {op.op}"
        )


def _names(parameters: str) -> tuple[str, ...]:
    return tuple(re.findall(r"(\w+), ", parameters))


def _signature(source: Path, text: str, op: str, parameters: str, body: str) -> Signature:
    match = _PARAMETERS.fullmatch(" ".join(parameters.split()))
    if match is None:
        raise ImportError(f"{source}: {op} has parameters ({parameters}), expected {_EXPECTED}")
    floating = "WITH_FLOATING_TYPE(" in body
    if floating == ("WITH_COMPUTE_TYPE(" in body):
        raise ImportError(
            f"{source}: {op} must launch under WITH_COMPUTE_TYPE or WITH_FLOATING_TYPE, which says "
            "what dtypes it takes"
        )
    operands, numbers = map(_names, match.groups())
    formula = re.search(rf"^//.*\b{op}: out = ([^;:\n]*)", text, re.M)
    return Signature(op, operands, numbers, floating, formula[1].strip() if formula else "")
