"""Reads the ops that a csrc/<stem>.cu exports from its text: elementwise ops without host code.

Each launcher of such a file is an op with its name:

    extern "C" int relu_scale_add(const Tensor* x, const Tensor* y, const Tensor* out, Scalar scale,
                                  cudaStream_t stream)

takes the tensors x and y, which broadcast, and the number scale. With WITH_COMPUTE_TYPE in its body
it takes every dtype, with WITH_FLOATING_TYPE the floating ones. The formula in the comment at the
head of the file, "relu_scale_add: out = …", becomes its docstring.

If there is a second launcher with the same tensors and numbers, the op has rungs (rungs.cuh):

    extern "C" int relu_scale_add_rung(const Call* call, const void* x, const void* y, void* out,
                                       Scalar scale, cudaStream_t stream)

If there is one with the op's parameters after a call, it also has the rungs of strided.cuh:

    extern "C" int relu_scale_add_strided(const Call* call, const Tensor* x, const Tensor* y,
                                          const Tensor* out, Scalar scale, cudaStream_t stream)

If there is a launcher relu_scale_add_tensor with the tensors x, y and scale, the number may also be
a tensor.

This module imports only the standard library, so that stubs can be written without torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

_RUNG, _STRIDED = "_rung", "_strided"
TENSOR = "_tensor"
_LAUNCHER = re.compile(r'^extern "C"\s+int\s+(\w+)\s*\(([^)]*)\)\s*\{(.*?)^\}', re.M | re.S)
_PARAMETERS = re.compile(
    r"((?:const Tensor\* \w+, ){1,3})const Tensor\* out, ((?:Scalar \w+, )*)cudaStream_t stream"
)
# The parameters of launchers of rungs; {} stands for the type of what an operand is.
_OF_RUNGS = (
    r"const Call\* call, ((?:const {0}\* \w+, ){{1,2}})(?:const )?{0}\* out, "
    r"((?:Scalar \w+, )*)cudaStream_t stream"
)
_EXPECTED = (
    "(const Tensor* <operand>, [const Tensor* <operand>, …] const Tensor* out, "
    "[Scalar <number>, …] cudaStream_t stream); other launchers need a cuda_reference/ops/<op>.py"
)


@dataclass(frozen=True)
class Signature:
    """The signature of an elementwise op, from its launcher.

    Attributes:
        op: the op's name, which is the launcher's.
        operands: the names of the tensors, one to three.
        numbers: the names of the numbers after them.
        floating: whether it takes only floating dtypes.
        formula: the formula in the comment, or "".
        rungs: whether it has the rungs for dense tensors.
        strided: whether it has those for other layouts.
        of_tensors: whether each of the numbers may be a tensor.
    """

    op: str
    operands: tuple[str, ...]
    numbers: tuple[str, ...]
    floating: bool
    formula: str
    rungs: bool = False
    strided: bool = False
    of_tensors: bool = False

    @property
    def has_variants(self) -> bool:
        """Whether it has any rungs."""
        return self.rungs or self.strided

    @property
    def number(self) -> str:
        """The annotation of a number."""
        return "Tensor | int | float" if self.of_tensors else "int | float"

    @property
    def docstring(self) -> str:
        """The function's docstring, in one line."""
        formula = f"{self.formula}: the" if self.formula else "The"
        variants = "its variants are rungs" if self.has_variants else "it has no variants"
        return f"{formula} CUDA twin of :func:`triton_kernels.{self.op}`; {variants}."


def signatures(source: Path) -> list[Signature]:
    """The ops that a .cu exports.

    Raises:
        ImportError: it exports none, or a launcher of another form. The text names the file.
    """
    text = source.read_text(encoding="utf-8")
    launchers = _LAUNCHER.findall(text)
    if not launchers or len(launchers) != len(re.findall(r'\bextern "C"', text)):
        raise ImportError(f'{source}: expected every extern "C" to be int <op>{_EXPECTED}')
    ends = (_RUNG, _STRIDED)
    rungs = {op: parameters for op, parameters, _ in launchers if op.endswith(ends)}
    plain = [launcher for launcher in launchers if launcher[0] not in rungs]
    declared = {each[0]: _signature(source, text, *each) for each in plain}
    forms = {op for op in declared if op.endswith(TENSOR) and op[: -len(TENSOR)] in declared}
    ops = [
        replace(
            each,
            rungs=op + _RUNG in rungs,
            strided=op + _STRIDED in rungs,
            of_tensors=op + TENSOR in forms,
        )
        for op, each in declared.items()
        if op not in forms
    ]
    for each in ops:
        for end, kind in ((_RUNG, "void"), (_STRIDED, "Tensor")):
            if each.op + end in rungs:
                _same_parameters(source, each, end, kind, rungs.pop(each.op + end))
        if each.of_tensors:
            _same_names(source, each, declared[each.op + TENSOR])
    if rungs:
        raise ImportError(f"{source}: {', '.join(rungs)} is a launcher of rungs of no op")
    return ops


def _same_names(source: Path, op: Signature, form: Signature) -> None:
    """Raise ImportError unless the launcher for tensors instead of numbers has the op's parameters,
    in the same order, and the same dtypes."""
    every = (*op.operands, *op.numbers)
    if (form.operands, form.numbers, form.floating) != (every, (), op.floating):
        raise ImportError(
            f"{source}: {form.op} takes {form.operands} and numbers {form.numbers}, expected the "
            f"tensors {every} and no numbers, and the dtypes of {op.op}"
        )


def _same_parameters(source: Path, op: Signature, end: str, kind: str, parameters: str) -> None:
    """Raise ImportError unless the launcher of rungs has the op's parameters in the same order, its
    tensors as ``kind``."""
    match = re.fullmatch(_OF_RUNGS.format(kind), " ".join(parameters.split()))
    if match is None or tuple(map(_names, match.groups())) != (op.operands, op.numbers):
        out = "void* out" if kind == "void" else f"const {kind}* out"
        raise ImportError(
            f"{source}: {op.op}{end} has parameters ({parameters}), expected (const Call* call, "
            f"const {kind}* <operand>, … {out}, [Scalar <number>, …] cudaStream_t stream) with "
            f"those of {op.op}"
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
