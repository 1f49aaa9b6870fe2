"""Every kind of derivative that torch has, of every op: forward mode, batches, second order, each
inside the other. torch's gradcheck tries them against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from products import leaf
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jvp, vmap

import triton_kernels as tk

FIRST = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
SECOND = {"check_fwd_over_rev": True, "check_rev_over_rev": True, "check_batched_grad": True}
Case = tuple[Callable[..., Any], list[tuple[int, ...]]]


def of_act(act: str) -> dict[str, Case]:
    return {
        f"linear_act, {act}": (
            lambda x, w, b: tk.linear_act(x, w, b, act=act),
            [(2, 3), (2, 3), (2,)],
        ),
        f"gemm_bias_act, {act}": (
            lambda a, b, bias, c: tk.gemm_bias_act(a, b, bias, act=act, alpha=0.7, beta=2, c=c),
            [(2, 3), (3, 2), (2,), (2, 1)],
        ),
        f"act_mul, {act}": (lambda gate, up: tk.act_mul(gate, up, act), [(2, 3), (3,)]),
        f"act_mul_backward, {act}": (
            lambda grad, gate, up: tk.act_mul_backward(grad, gate, up, act),
            [(2, 3)] * 3,
        ),
        f"act_backward, {act}": (lambda g, s: tk.act_backward(g, s, act), [(2, 3)] * 2),
        f"act_backward without sums, {act}": (
            lambda g, s: tk.act_backward(g, s, act, bias=False)[0],
            [(2, 3)] * 2,
        ),
    }


# gelu saves the pre-activation and tanh the result; relu is piecewise linear.
CASES: dict[str, Case] = {
    "add": (lambda x, y: tk.add(x, y, alpha=0.5), [(2, 3), (3,)]),
    "square": (tk.square, [(2, 3)]),
    "square_backward": (tk.square_backward, [(2, 3)] * 2),
    "relu_scale": (tk.relu_scale, [(2, 3), (3,)]),
    "relu_scale_add": (lambda x, y: tk.relu_scale_add(x, y, 0.5), [(2, 3), (3,)]),
    "relu_scale_backward": (lambda g, x: tk.relu_scale_backward(g, x, 0.5), [(2, 3)] * 2),
    "sum_to": (lambda x: tk.sum_to(x, (1, 3), factor=2), [(2, 3)]),
    "linear_gelu": (tk.linear_gelu, [(2, 3), (2, 3), (2,)]),
    **of_act("gelu"),
    **of_act("tanh"),
    **of_act("relu"),
}


@pytest.mark.parametrize("name", CASES)
def test_all_kinds(name: str, device: torch.device) -> None:
    function, shapes = CASES[name]
    torch.manual_seed(0)
    inputs = [leaf(device, *shape) for shape in shapes]
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True, **FIRST)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True, **SECOND)


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Any]] = {
    "jvp": lambda f, x, t: jvp(f, (x,), (t,)),
    "jvp of jvp": lambda f, x, t: jvp(lambda x: jvp(f, (x,), (t,))[1], (x,), (t,)),
    "jvp of grad": lambda f, x, t: jvp(grad(lambda x: f(x).sum()), (x,), (t,)),
    "grad of jvp": lambda f, x, t: grad(lambda x: jvp(f, (x,), (t,))[1].sum())(x),
    "jacfwd": lambda f, x, t: jacfwd(f)(x),
    "hessian": lambda f, x, t: hessian(lambda x: f(x).square().sum())(x),
    "vmap of jvp": lambda f, x, t: vmap(lambda v: jvp(f, (x,), (v,))[1])(torch.stack([x, t])),
    "jvp of vmap": lambda f, x, t: jvp(vmap(lambda v: f(v[None])[0]), (x,), (t,)),
    "hessian of autograd": lambda f, x, t: torch.autograd.functional.hessian(
        lambda x: f(x).square().sum(), x
    ),
    "hessian of autograd, forward": lambda f, x, t: torch.autograd.functional.hessian(
        lambda x: f(x).square().sum(), x, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
}


@pytest.mark.parametrize("act", ["silu", "sigmoid", "relu"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, act: str, cpu: torch.device) -> None:
    x, t, w, b = (leaf(cpu, *shape).detach() for shape in ((2, 3), (2, 3), (4, 3), (4,)))
    eager = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid, "relu": torch.relu}[act]
    ours = TRANSFORMS[name](lambda x: tk.linear_act(x, w, b, act=act), x, t)
    theirs = TRANSFORMS[name](lambda x: eager(torch.nn.functional.linear(x, w, b)), x, t)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_forward_mode(backend: str, cpu: torch.device) -> None:
    """torch.compile's graph of a transform does not set torch.autograd's level."""
    x, t, w = (leaf(cpu, *shape).detach() for shape in ((2, 3), (2, 3), (4, 3)))

    def both(x: Tensor, t: Tensor) -> Any:
        return jvp(lambda x: tk.linear_act(x, w, act="silu"), (x,), (t,))

    torch.testing.assert_close(torch.compile(both, backend=backend)(x, t), both(x, t))


def test_tangents_have_gradients_of_parameters(cpu: torch.device) -> None:
    """Also of those that carry no tangent; where none is wanted the results have no history."""
    x, t, b = (leaf(cpu, *shape).detach() for shape in ((2, 3), (2, 3), (4,)))
    weight = leaf(cpu, 4, 3)
    results = []
    for function in (
        lambda x: tk.linear_act(x, weight, b, act="tanh"),
        lambda x: torch.tanh(torch.nn.functional.linear(x, weight, b)),
    ):
        with forward_ad.dual_level():
            value, tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, t)))
            (gradient,) = torch.autograd.grad((value * tangent).sum(), weight)
        with torch.no_grad(), forward_ad.dual_level():
            plain = forward_ad.unpack_dual(function(forward_ad.make_dual(x, t)))
        assert not plain.primal.requires_grad
        assert not plain.tangent.requires_grad
        results.append((value.detach(), tangent.detach(), gradient, *plain))
    torch.testing.assert_close(*results)


def test_out_has_no_tangent(cpu: torch.device) -> None:
    x = leaf(cpu, 2, 3).detach()
    with (
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match=r"square\(\): out= does not work with forward"),
    ):
        tk.square(forward_ad.make_dual(x, x), out=torch.empty_like(x))
