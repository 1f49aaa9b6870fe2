"""Every op on DTensors of every placement: what test_distributed.py has each rank run.

The numbers are small integers in float64, whose sums are exact in any order: sharded and whole,
results and gradients must be the same bits. Only derivatives of gelu and the like are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode

import triton_kernels as tk
from triton_kernels._sharded_linear import sharded_linear

R, P, S0, S1, S2 = Replicate(), Partial(), Shard(0), Shard(1), Shard(2)
ANY = None  # DTensor's choice, once it has to redistribute
# Sums of at most 16 addends below 2⁹, in two orders, and a result of that size for larger ones.
ROUNDINGS = 2.0**14 * torch.finfo(torch.float64).eps
OPS = torch.ops.triton_kernels


@dataclass(frozen=True)
class Case:
    """A function of sharded tensors.

    Attributes:
        shapes, given: of the tensors, and their placements.
        out: the results' placements, or ANY.
        moves: whether arguments must be redistributed, so that ranks communicate.
        exact: whether gradients, too, are sums of integers.
    """

    op: str
    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    given: Sequence[Placement]
    out: Sequence[Placement | None]
    moves: bool = False
    exact: bool = True
    dtype: torch.dtype = torch.float64
    gradients: bool = True


def elementwise() -> list[Case]:
    square, row = (5, 6), (6,)
    two, broadcast = (square, square), (square, row)
    cases = []

    def case(op: str, function: Any, shapes: Any, given: Any, out: Any, **options: Any) -> None:
        cases.append(Case(op, function, shapes, given, [out], **options))

    for name, function in {
        "add": lambda x, y: tk.add(x, y, alpha=-3),
        "square_backward": tk.square_backward,
        "relu_scale_add": lambda x, y: tk.relu_scale_add(x, y, 2),
        "relu_scale_backward": lambda x, y: tk.relu_scale_backward(x, y, 2),
    }.items():
        for p in (R, S0, S1):
            case(name, function, two, (p, p), p)
        case(name, function, two, (S0, R), S0)
        case(name, function, broadcast, (S0, R), S0)
        case(name, function, broadcast, (S1, S0), S1)
        case(name, function, ((5, 1), (1, 6)), (S0, R), S0)
        linear = name != "relu_scale_add"  # of the others one argument is reduced, or none
        case(name, function, two, (P, P), P if linear else ANY, moves=name != "add")
    case("add", tk.add, two, (P, R), P)
    integers = {"dtype": torch.int64, "gradients": False, "moves": True}
    case("add", tk.add, two, (P, R), ANY, **integers)
    case("square_backward", tk.square_backward, two, (P, R), P)
    case("square_backward", tk.square_backward, two, (R, P), P)
    case("relu_scale_backward", lambda x, y: tk.relu_scale_backward(x, y, 2), two, (P, R), P)
    for p, q in ((S0, S0), (S1, R), (R, R)):
        case("relu_scale_tensor", tk.relu_scale, (square, (5, 1)), (p, q), p)
        case(
            "relu_scale_add_tensor",
            tk.relu_scale_add,
            (square, row, (5, 1)),
            (p, S0 if p == S1 else R, q),
            p,
        )
    case("relu_scale_tensor", tk.relu_scale, two, (R, P), P)
    case("relu_scale_tensor", tk.relu_scale, two, (P, R), ANY, moves=True)
    for given in ((P, R, R), (R, R, P)):
        case("relu_scale_backward_tensor", tk.relu_scale_backward, (square, *two), given, P)
    for name, unary in {
        "add_scalar": lambda x: tk.add(x, 3),
        "add_to_scalar": lambda y: tk.add(3, y, alpha=-3),
        "square": tk.square,
        "relu_scale": lambda x: tk.relu_scale(x, 2),
    }.items():
        for p in (R, S0, S1):
            case(name, unary, (square,), (p,), p)
        case(name, unary, (square,), (P,), ANY, moves=True)
    for number in (3, 0.5, 3.0):  # kinds of numbers that give different dtypes
        add_number = lambda x, y=number: tk.add(x, y)  # noqa: E731
        to_number = lambda y, x=number: tk.add(x, y)  # noqa: E731
        for name, function in (("add_scalar", add_number), ("add_to_scalar", to_number)):
            case(name, function, (square,), (S0,), S0, dtype=torch.int64, gradients=False)
    return cases


def sums() -> list[Case]:
    def sum_to(x: Tensor) -> Tensor:
        return tk.sum_to(x, (5, 1), factor=2)

    pairs = [(R, R), (S0, P), (S1, S0), (S2, P), (P, P)]
    cases = [Case("sum_to", sum_to, [(4, 5, 6)], [given], [out]) for given, out in pairs]
    # Decisions that DTensor remembers: other shapes and dtypes of the same tensor.
    rows = Case("sum_to", lambda x: tk.sum_to(x, (6,)), [(5, 6)], [S0], [P])
    columns = Case("sum_to", lambda x: tk.sum_to(x, (5, 1)), [(5, 6)], [S0], [S0])
    whole = Case("sum_to", lambda x: tk.sum_to(x, (5, 6), factor=3), [(5, 6)], [S0], [S0])
    single = Case("sum_to", lambda x: tk.sum_to(x, (6,), dtype=torch.float32), [(5, 6)], [S0], [P])
    return [*cases, rows, columns, whole, single]


def act_backwards() -> list[Case]:
    both = [(5, 6), (5, 6)]

    def case(given: Any, out: Any, bias: bool = True, moves: bool = False) -> Case:
        def backward(grad: Tensor, saved: Tensor) -> Any:
            return tk.act_backward(grad, saved, "relu", bias=bias)

        return Case("act_backward", backward, both, given, out, moves)

    return [
        case((R, R), (R, R)),
        case((S0, S0), (S0, P)),
        case((S0, S0), (S0, R), bias=False),
        case((S1, S1), (S1, S0)),
        case((S1, S1), (S1, R), bias=False),
        case((P, R), (P, P)),
        case((P, R), (P, R), bias=False),
        case((P, P), (P, P), moves=True),
    ]


def gated() -> list[Case]:
    """act_mul is linear in up, its gradients in grad."""
    square, row = (5, 6), (6,)
    relu = lambda g, u: tk.act_mul(g, u, "relu")  # noqa: E731
    backward = lambda d, g, u: tk.act_mul_backward(d, g, u, "relu")  # noqa: E731
    forward = [
        ([square, square], (R, R), R, False),
        ([square, square], (S0, S0), S0, False),
        ([square, square], (S1, S1), S1, False),
        ([square, row], (S0, R), S0, False),
        ([row, square], (S0, S1), S1, False),
        ([square, square], (R, P), P, False),
        ([square, square], (P, R), ANY, True),
    ]
    pairs = [
        ([square] * 3, (R, R, R), R, False),
        ([square] * 3, (S0, S0, S0), S0, False),
        ([square, square, row], (S1, S1, S0), S1, False),
        ([square] * 3, (P, R, R), P, False),
        ([square] * 3, (R, R, P), ANY, True),
    ]
    cases = [Case("act_mul", relu, each, given, [out], m) for each, given, out, m in forward]
    return cases + [
        Case("act_mul_backward", backward, each, given, [out, out], m)
        for each, given, out, m in pairs
    ]


def products() -> list[Case]:
    a, b, bias = (5, 7), (7, 6), (6,)
    cases = []

    def case(
        act: str, given: Any, out: Placement | None, c: Any = None, moves: bool = False
    ) -> None:
        def product(a: Tensor, b: Tensor, bias: Tensor, c: Tensor | None = None) -> Tensor:
            beta = None if c is None else 2.0
            return tk.gemm_bias_act(a, b, bias, act=act, alpha=-3.0, beta=beta, c=c)

        shapes = [a, b, bias] if c is None else [a, b, bias, c]
        exact = act in ("none", "relu")
        cases.append(Case("gemm_bias_act", product, shapes, given, [out], moves, exact))

    for act in ("none", "relu", "gelu"):
        case(act, (R, R, R), R)
        case(act, (S0, R, R), S0)
        case(act, (R, S1, S0), S1)
        case(act, (S0, R, R, S0), S0, c=(5, 6))
        case(act, (R, S1, S0, S1), S1, c=(5, 6))
    case("none", (S0, R, R, R), S0, c=(6,))
    case("none", (R, S1, S0, S0), S1, c=(6,))
    case("none", (S0, R, R, S0), S0, c=(5, 1))
    case("none", (R, S1, S0, R), S1, c=(5, 1))
    case("none", (S1, S0, R), P)
    case("none", (S1, S0, R, R), P, c=(5, 6))
    # After "none" was remembered; and the other way round.
    for act in ("relu", "gelu"):
        case(act, (S1, S0, R), ANY, moves=True)
        case(act, (S1, S0, P), ANY, moves=True)
    case("none", (S1, S0, R), P)
    return cases


def linears() -> list[Case]:
    """The op, and what modules call instead."""
    shapes = (4, 4, 7), (6, 7), (6,)
    gelu = lambda x, w, b=None: tk.linear_gelu(x, w, b)  # noqa: E731
    cases = []
    for given, out in (
        ((R, R, R), R),
        ((S0, R, R), S0),
        ((S1, R, R), S1),
        ((R, S0, S0), S2),
    ):
        # torch 2.11 cannot merge S1 into rows without gathering, and refuses to gather there.
        gradients = given[0] != S1
        cases.append(
            Case("linear_gelu", gelu, shapes, given, [out], False, False, gradients=gradients)
        )
        for act in ("none", "gelu"):
            cases.append(helper(act, given, out))
        relu = lambda x, w, b: tk.linear_act(x, w, b, act="relu")  # noqa: E731
        cases.append(
            Case("linear_act", relu, shapes, given, [out], False, True, gradients=gradients)
        )
    cases.append(Case("linear_gelu", gelu, shapes[:2], (R, S0), [S2], exact=False))
    for approximate in ("none", "tanh"):
        function = lambda x, w, b, a=approximate: tk.linear_gelu(x, w, b, approximate=a)  # noqa: E731
        cases.append(Case("linear_gelu", function, shapes, (S2, S1, R), [ANY], True, False))
    cases.append(helper("none", (S2, S1, R), P))
    for act in ("relu", "gelu", "tanh"):
        cases.append(helper(act, (S2, S1, R), R))
    return cases


def helper(act: str, given: Sequence[Placement], out: Placement) -> Case:
    """sharded_linear, which all-reduces before an activation and gathers nothing."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if isinstance(x, DTensor):
            return sharded_linear(x, weight, bias, act)
        rows = tk.gemm_bias_act(x.reshape(-1, x.shape[-1]), weight.t(), bias, act=act)
        return rows.view(*x.shape[:-1], -1)

    moves = act != "none" and given[1] == S1
    exact = act in ("none", "relu")
    return Case("sharded_linear", linear, [(4, 4, 7), (6, 7), (6,)], given, [out], moves, exact)


CASES = [*elementwise(), *sums(), *act_backwards(), *gated(), *products(), *linears()]


def check(case: Case, mesh: DeviceMesh) -> None:
    """The results and gradients of sharded tensors against those of the whole ones."""
    seeds = count()
    whole = [integers(shape, case.dtype, mesh, next(seeds)) for shape in case.shapes]
    sharded = [share(t, placement, mesh) for t, placement in zip(whole, case.given)]
    if case.gradients:
        for t in (*whole, *sharded):
            t.requires_grad_()
    expected = listed(case.function(*whole))
    with CommDebugMode() as communication:
        results = listed(case.function(*sharded))
    for result, placement in zip(results, case.out, strict=True):
        assert placement in (ANY, result.placements[0]), result.placements
    moves = communication.get_total_counts()
    assert bool(moves) == case.moves, f"{moves} collectives"
    assert [r.dtype for r in results] == [right.dtype for right in expected]
    full = [r.full_tensor() for r in results]
    for result, right in zip(full, expected):
        assert_same(result, right, exact=case.exact)
    if not case.gradients:
        return
    wanted = [i for i, right in enumerate(expected) if right.numel()]
    grads = [integers(expected[i].shape, expected[i].dtype, mesh, next(seeds)) for i in wanted]
    torch.autograd.backward([expected[i] for i in wanted], grads)
    torch.autograd.backward([full[i] for i in wanted], grads)
    for part, right in zip(sharded, whole):
        assert right.grad is not None
        assert isinstance(part.grad, DTensor)
        assert_same(part.grad.full_tensor(), right.grad, exact=case.exact)


def integers(shape: Any, dtype: torch.dtype, mesh: DeviceMesh, seed: int) -> Tensor:
    """From −4 to 4 but 0, where relu has no derivative; the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.randint(1, 5, shape, generator=generator)
    sign = 2 * torch.randint(0, 2, shape, generator=generator) - 1
    return (t * sign).to(mesh.device_type, dtype)


def share(t: Tensor, placement: Placement, mesh: DeviceMesh) -> DTensor:
    """This rank's part of t. Of a sum, each rank has another addend, and the first has the rest."""
    if not placement.is_partial():
        return distribute_tensor(t, mesh, [placement])
    rank = mesh.get_local_rank()
    addends = [integers(t.shape, t.dtype, mesh, 100 + r) for r in range(1, mesh.size())]
    part = addends[rank - 1] if rank else t - sum(addends)
    return DTensor.from_local(part, mesh, [placement])


def listed(results: Any) -> list[Any]:
    return [results] if isinstance(results, Tensor) else list(results)


def assert_same(result: Tensor, expected: Tensor, *, exact: bool) -> None:
    """The same numbers; or, where roundings depend on the order of sums, within their bound."""
    largest = float(expected.detach().abs().max()) if expected.numel() else 0.0
    atol = 0.0 if exact else ROUNDINGS * max(1.0, largest)
    torch.testing.assert_close(result.detach(), expected.detach(), rtol=0, atol=atol)


def describe(case: Case) -> str:
    given = ", ".join(str(placement) for placement in case.given)
    return f"{case.op} {list(case.shapes)} {given} {case.dtype}"
