"""What compare knows about each op: one entry feeds check, and later debug, bench and report.

An entry holds the two implementations, the oracle (the op's one definition, in plain torch), the
cases to probe it with, how far a result may be from the oracle, and what a call costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import cuda_reference
import triton_kernels
from compare.case_options import NUMBER, Option
from compare.cases import DISTANT, FLOATS, INTEGERS, LAYOUTS, Arguments, Case, Level, Sized
from compare.specs import (
    elementwise,
    gradients,
    product_cases,
    product_inputs,
    product_peers,
    products,
    sums,
)


@dataclass(frozen=True)
class Spec:
    """One op.

    Attributes:
        triton, cuda: the public functions of both sides, each giving one tensor, into ``out`` if
            that is given.
        oracle: takes the same arguments (without out) and returns what is right: of the result's
            dtype for an exact op, float64 for one with a bound.
        dtypes: names of the dtypes that check covers.
        cases: the cases of a dtype at a level.
        inputs: a case's positional and keyword arguments, on the CPU or the device that follows.
        takes: whether a side, or a variant of it, is made for a case.
        called: of a case and an implementation, what is called: the implementation itself, unless
            options of the case are no arguments of the op but say how to call it.
        bound: None for an exact op; else the largest right |out − oracle| of each element, from
            the implementation's name, the arguments, the oracle's result and the result's dtype.
        exact: for an op with a bound, the cases in which bits must agree all the same.
        out_dtype: the result's dtype, for an op with a bound.
        default_variant: the CUDA variant that the default is, so that it runs once.
        layouts, values, options: what the coordinates of a case may be.
        sizes: what a case's shape must name, for an op whose cases have one number of sizes.
        refuses: why the op does not take a case, or nothing.
        default_shape, default_options: of a case that names none on the command line.
        every: what the cases with values "every" prove, for the table.
        unary: whether the op takes one tensor, so that all its inputs can be tried.
        source_stem: of the op's source files on both sides, where it is not the name.
        cost: (floating-point operations, bytes moved at least) of a call.
        summary: one line for people.
        to_compile: of a name, dtype and default options, the cases whose launches between them
            are every Triton kernel and configuration; variants are compiled for the first one.
        cuda_kernel: the name of the CUDA kernel of an op, dtype and variant, as in its source.
        eager: the op as torch's users write it: what benchmarks compare with.
        fused: the same by a library's fused kernel, where there is one for the timed cases.
        timed: of a name, dtype and default options, the cases that benchmarks time.
        sweeps: of the same, cases over a range of sizes: name of the sweep, size, case.
    """

    name: str
    triton: Callable[..., Tensor]
    cuda: Callable[..., Tensor]
    oracle: Callable[..., Tensor]
    dtypes: tuple[str, ...]
    cases: Callable[[str, Level], Iterator[Case]]
    inputs: Callable[..., Arguments]
    cost: Callable[[Case], tuple[int, int]]
    summary: str
    eager: Callable[..., Tensor]
    to_compile: Callable[[str, str, Mapping[str, Any]], Iterator[Case]] = elementwise.to_compile
    cuda_kernel: Callable[[str, str, str | None], str] = elementwise.cuda_kernel
    fused: Callable[..., Tensor] | None = None
    timed: Callable[[str, str, Mapping[str, Any]], Iterator[Case]] = elementwise.timed
    sweeps: Callable[[str, str, Mapping[str, Any]], Iterator[Sized]] = elementwise.sweeps
    takes: Callable[[str, str | None, Case], bool] = lambda side, variant, case: True
    called: Callable[[Case, Callable[..., Tensor]], Callable[..., Tensor]] = lambda case, f: f
    bound: Callable[[str, Arguments, Tensor, torch.dtype], Tensor] | None = None
    exact: Callable[[Case], bool] = lambda case: False
    out_dtype: Callable[[Case], torch.dtype] = lambda case: case.torch_dtype
    default_variant: str | None = None
    every: str = ""
    unary: bool = False
    source_stem: str = ""
    layouts: tuple[str, ...] = (*LAYOUTS, "inplace", "functional", *DISTANT)
    values: tuple[str, ...] = ("normal", "special", "every", "integers")
    options: Mapping[str, Option] = field(default_factory=lambda: elementwise.UNARY_OPTIONS)
    sizes: str = ""
    refuses: Callable[[Case], str] = lambda case: ""
    default_shape: tuple[int, ...] = (33, 129)
    default_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        return self.source_stem or self.name


SPECS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec(
            name="add",
            triton=triton_kernels.add,
            cuda=cuda_reference.add,
            oracle=elementwise.add_oracle,
            options=elementwise.ADD_OPTIONS,
            refuses=elementwise.add_refuses,
            dtypes=FLOATS + INTEGERS,
            cases=elementwise.add_cases,
            values=elementwise.VALUES,
            inputs=elementwise.binary_inputs,
            takes=elementwise.add_takes,
            cost=lambda c: (2 * c.numel, 3 * c.numel * c.torch_dtype.itemsize),
            summary="x + alpha·y",
            eager=torch.add,
        ),
        Spec(
            name="square",
            triton=triton_kernels.square,
            cuda=cuda_reference.square,
            oracle=elementwise.stepwise(lambda x: x * x),
            every="every input",
            unary=True,
            dtypes=FLOATS + INTEGERS,
            cases=lambda dtype, level: elementwise.elementwise_cases(
                "square", dtype, level, {"all": [{}], "more": []}
            ),
            inputs=elementwise.unary_inputs,
            takes=elementwise.square_takes,
            cost=lambda c: (c.numel, 2 * c.numel * c.torch_dtype.itemsize),
            summary="x·x",
            eager=torch.square,
        ),
        Spec(
            name="square_backward",
            triton=triton_kernels.square_backward,
            cuda=cuda_reference.square_backward,
            oracle=elementwise.stepwise(lambda grad, x: grad * (x + x)),
            source_stem="square",
            options=elementwise.BINARY_OPTIONS,
            dtypes=FLOATS,
            cases=lambda dtype, level: elementwise.elementwise_cases(
                "square_backward",
                dtype,
                level,
                {"all": [{}], "more": [{"y": "row"}, {"y": "0-d"}, {"y_dtype": "float32"}]},
            ),
            inputs=elementwise.binary_inputs,
            cost=lambda c: (2 * c.numel, 3 * c.numel * c.torch_dtype.itemsize),
            summary="grad·(2·x)",
            eager=lambda grad, x: grad * (2 * x),
            timed=elementwise.timed_gradient,
        ),
        Spec(
            name="relu_scale",
            triton=triton_kernels.relu_scale,
            cuda=cuda_reference.relu_scale,
            oracle=elementwise.relu_scale_oracle,
            every="every x",
            unary=True,
            options={"scale": NUMBER, **elementwise.UNARY_OPTIONS},
            default_options={"scale": 0.1},
            dtypes=FLOATS,
            cases=lambda dtype, level: elementwise.elementwise_cases(
                "relu_scale", dtype, level, {"all": [{"scale": 0.1}, {"scale": -2}], "more": []}
            ),
            inputs=elementwise.unary_inputs,
            cost=lambda c: (2 * c.numel, 2 * c.numel * c.torch_dtype.itemsize),
            summary="relu(x)·scale",
            eager=lambda x, *, scale: torch.relu(x) * scale,
        ),
        Spec(
            name="relu_scale_add",
            triton=triton_kernels.relu_scale_add,
            cuda=cuda_reference.relu_scale_add,
            oracle=elementwise.relu_scale_add_oracle,
            source_stem="relu_scale",
            options={"scale": NUMBER, **elementwise.BINARY_OPTIONS},
            default_options={"scale": 0.1},
            dtypes=FLOATS,
            cases=elementwise.relu_scale_add_cases,
            values=elementwise.VALUES,
            inputs=elementwise.binary_inputs,
            cost=lambda c: (3 * c.numel, 3 * c.numel * c.torch_dtype.itemsize),
            summary="relu(x)·scale + y",
            eager=lambda x, y, *, scale: torch.relu(x) * scale + y,
        ),
        Spec(
            name="relu_scale_backward",
            triton=triton_kernels.relu_scale_backward,
            cuda=cuda_reference.relu_scale_backward,
            oracle=elementwise.stepwise(
                lambda grad, x, scale: torch.where(x <= 0, torch.zeros_like(x), grad * scale)
            ),
            source_stem="relu_scale",
            every="every x",
            options={"scale": NUMBER, **elementwise.BINARY_OPTIONS},
            default_options={"scale": 0.1},
            dtypes=FLOATS,
            cases=lambda dtype, level: elementwise.elementwise_cases(
                "relu_scale_backward",
                dtype,
                level,
                {
                    "all": [{"scale": 0.1}, {"scale": -2}],
                    "more": [{"y": "row"}, {"y": "0-d"}, {"y_dtype": "float32"}],
                },
            ),
            inputs=elementwise.binary_inputs,
            cost=lambda c: (2 * c.numel, 3 * c.numel * c.torch_dtype.itemsize),
            summary="0 where x <= 0, else grad·scale",
            eager=lambda grad, x, *, scale: torch.where(x <= 0, torch.zeros_like(x), grad * scale),
            timed=elementwise.timed_gradient,
        ),
        Spec(
            name="sum_to",
            triton=triton_kernels.sum_to,
            cuda=cuda_reference.sum_to,
            oracle=sums.oracle,
            bound=sums.bound,
            exact=sums.is_exact,
            out_dtype=sums.out_dtype,
            dtypes=FLOATS,
            cases=sums.sum_to_cases,
            inputs=sums.inputs,
            layouts=sums.LAYOUTS,
            values=sums.VALUES,
            options=sums.OPTIONS,
            default_options={"to": "row"},
            cost=sums.cost,
            to_compile=sums.to_compile,
            summary="factor·Σx, to a shape that broadcasts to x's",
            eager=sums.eager,
            timed=elementwise.timed_gradient,
            sweeps=elementwise.square_sweeps,
        ),
        Spec(
            name="linear_gelu",
            triton=triton_kernels.linear_gelu,
            cuda=cuda_reference.linear_gelu,
            oracle=products.linear_gelu_oracle,
            dtypes=FLOATS,
            cases=product_cases.linear_gelu_cases,
            inputs=product_inputs.linear_gelu_inputs,
            takes=product_cases.gemm_takes,
            called=product_inputs.called,
            bound=products.linear_gelu_bound,
            exact=product_cases.is_exact,
            default_variant="naive",
            layouts=product_inputs.LAYOUTS,
            values=product_inputs.VALUES,
            options=product_inputs.LINEAR_GELU_OPTIONS,
            sizes=product_inputs.SIZES,
            refuses=product_cases.refuses,
            default_shape=(33, 65, 70),
            cost=product_cases.gemm_cost,
            to_compile=product_cases.linear_gelu_to_compile,
            cuda_kernel=product_cases.cuda_kernel,
            summary="gelu(x @ weight.T + bias)",
            eager=product_peers.linear_gelu_eager,
            fused=product_peers.linear_gelu_fused,
            timed=product_peers.linear_gelu_timed,
            sweeps=product_peers.linear_gelu_sweeps,
        ),
        Spec(
            name="gemm_bias_act",
            triton=triton_kernels.gemm_bias_act,
            cuda=cuda_reference.gemm_bias_act,
            oracle=products.gemm_bias_act_oracle,
            dtypes=FLOATS,
            cases=product_cases.gemm_bias_act_cases,
            inputs=product_inputs.gemm_bias_act_inputs,
            takes=product_cases.gemm_takes,
            called=product_inputs.called,
            bound=products.gemm_bias_act_bound,
            exact=product_cases.is_exact,
            every="acts on every x",
            out_dtype=product_cases.out_dtype,
            default_variant="naive",
            layouts=product_inputs.LAYOUTS,
            values=product_inputs.VALUES,
            options=product_inputs.GEMM_BIAS_ACT_OPTIONS,
            sizes=product_inputs.SIZES,
            refuses=product_cases.refuses,
            default_shape=(33, 65, 70),
            cost=product_cases.gemm_cost,
            to_compile=product_cases.gemm_bias_act_to_compile,
            cuda_kernel=product_cases.cuda_kernel,
            summary="act(alpha·(a@b) + beta·c + bias)",
            eager=product_peers.gemm_bias_act_eager,
            fused=product_peers.gemm_bias_act_fused,
            timed=product_peers.gemm_bias_act_timed,
            sweeps=product_peers.gemm_bias_act_sweeps,
        ),
        Spec(
            name="act_backward",
            triton=gradients.in_one(triton_kernels.act_backward),
            cuda=gradients.in_one(cuda_reference.act_backward),
            oracle=gradients.oracle,
            bound=gradients.bound,
            exact=gradients.is_exact,
            every="every saved value",
            out_dtype=gradients.out_dtype,
            dtypes=FLOATS,
            cases=gradients.act_backward_cases,
            inputs=gradients.inputs,
            layouts=gradients.LAYOUTS,
            values=gradients.VALUES,
            options=gradients.OPTIONS,
            sizes="M,N",
            default_options={"act": "gelu"},
            cost=gradients.cost,
            to_compile=gradients.to_compile,
            summary="grad·act'(saved), and its column sums",
            eager=gradients.eager,
            timed=elementwise.timed_gradient,
            sweeps=elementwise.square_sweeps,
        ),
    )
}
