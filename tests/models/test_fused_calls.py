"""A fused module is its module, whatever that does, and however it is called or changed."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import register_module_forward_hook
from written import FUSED, Apply, inputs, kernels

import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("no_grad", "fresh")

GELU = [("linear_gelu", "gelu")]


class Layer(nn.Module):
    """Linear and gelu, and what ``then`` makes of that."""

    def __init__(self, then: Callable[..., Any] = lambda m, h: h) -> None:
        super().__init__()
        self.fc, self.gain, self.then = nn.Linear(8, 8), 2.0, then

    def forward(self, x: Tensor) -> Any:
        return self.then(self, F.gelu(self.fc(x)))


def x8(rows: int = 3) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows))


def same(fused: tk.graph.Fused, module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """The fused module gives what the module gives, by a fused kernel."""
    result, right = fused(*args, **kwargs), module(*args, **kwargs)
    assert type(result) is type(right)
    torch.testing.assert_close(result, right, rtol=1e-5, atol=1e-5)
    assert kernels(fused.plan)[:1] == GELU, fused.plan


def test_first_called_inside_autocast(cpu: torch.device) -> None:
    """Autocast keeps casts of weights for its region: none may be of the tracer's."""
    module = Layer().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused = tk.fuse(module, min_score=0)
        first, plain = fused(x8()), module(x8())
    assert not isinstance(first, FakeTensor)
    assert not isinstance(plain, FakeTensor)
    assert first.dtype == plain.dtype == torch.bfloat16
    torch.testing.assert_close(first, plain, rtol=0.02, atol=0.02)
    same(fused, module, x8())  # outside, it is float32 again
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fused(x8()).dtype == torch.bfloat16


def test_hooks_run(cpu: torch.device) -> None:
    """On the root and inside, registered before the first call or after it."""
    module, ran = Layer(), []
    module.register_forward_pre_hook(lambda m, args: ran.append("pre"))
    fused = tk.fuse(module, min_score=0)
    fused(x8())
    assert ran == ["pre"]
    root = module.register_forward_hook(lambda m, args, out: out + 1)
    child = module.fc.register_forward_hook(lambda m, args, out: ran.append("fc"))
    ran.clear()
    torch.testing.assert_close(fused(x8()), F.gelu(F.linear(x8(), *module.fc.parameters())) + 1)
    assert ran == ["pre", "fc"]
    root.remove()
    child.remove()
    ran.clear()
    same(fused, module, x8())
    assert ran == ["pre", "pre"]


def test_a_hook_that_changes_a_layer(cpu: torch.device) -> None:
    module = Layer()
    module.fc.register_forward_hook(lambda m, args, out: out * 3)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x8()), module(x8()), rtol=1e-5, atol=1e-5)


def test_hooks_of_all_modules_run(cpu: torch.device) -> None:
    """Registered before the first call or after it, exchanged, and removed: no guard sees them."""
    module = Layer()
    fused = tk.fuse(module, min_score=0)
    for factor in (2.0, None, 3.0, 4.0):
        if factor is None:
            same(fused, module, x8())
            continue

        def hook(m: nn.Module, args: Any, out: Tensor, by: float = factor) -> Tensor | None:
            return out * by if isinstance(m, nn.Linear) else None

        handle = register_module_forward_hook(hook)
        with warnings.catch_warnings():  # torch.compile's, of such hooks
            warnings.simplefilter("ignore")
            result, right = fused(x8()), module(x8())
        handle.remove()
        torch.testing.assert_close(result, right)
        wanted = F.gelu(F.linear(x8(), *module.fc.parameters()) * factor)
        torch.testing.assert_close(right, wanted)
    same(fused, module, x8())


def test_forward_derivatives(cpu: torch.device) -> None:
    """The module runs as written."""
    module = Layer()
    fused = tk.fuse(module, min_score=0)
    same(fused, module, x8())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x8(), torch.ones(3, 8))
        ours, right = (forward_ad.unpack_dual(m(dual)).tangent for m in (fused, module))
    torch.testing.assert_close(ours, right)
    same(fused, module, x8())


def test_random_numbers_are_new(cpu: torch.device) -> None:
    for draw in (lambda: torch.rand(()), lambda: torch.tensor(random.random())):
        fused = tk.fuse(Layer(lambda m, h, draw=draw: (h, draw())), min_score=0)
        assert len({fused(x8())[1].item() for _ in range(4)}) == 4
        assert kernels(fused.plan) == GELU
    fused = tk.fuse(Layer(lambda m, h: torch.rand(())))
    torch.manual_seed(5)
    drawn = fused(x8())
    torch.manual_seed(5)
    assert drawn == torch.rand(())


def test_attributes_parameters_and_submodules_are_todays(cpu: torch.device) -> None:
    module = Layer(lambda m, h: h.cumsum(-1) * m.gain)
    fused = tk.fuse(module, min_score=0)
    same(fused, module, x8())
    module.gain = 5.0
    same(fused, module, x8())
    module.fc.weight = nn.Parameter(torch.ones(8, 8))
    same(fused, module, x8())
    module.fc = nn.Linear(8, 8)
    same(fused, module, x8())
    module.fc = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh())  # type: ignore[assignment]
    torch.testing.assert_close(fused(x8()), module(x8()))
    fused.module = Layer()
    same(fused, fused.module, x8())


@dataclass
class Output:
    """As Hugging Face's models return."""

    logits: Tensor
    hidden: tuple[Tensor, ...] | None = None


class Model(nn.Module):
    """Takes what theirs take: keywords, a dict of options, a tuple of caches."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(
        self,
        x: Tensor | None = None,
        *past: Tensor,
        mask: Tensor | None = None,
        caches: tuple[tuple[Tensor, Tensor], ...] = (),
        extra: dict[str, Any] | None = None,
        output_hidden: bool = False,
        return_dict: bool = True,
        **kwargs: Any,
    ) -> Any:
        x = kwargs["inputs_embeds"] if x is None else x
        h = F.gelu(self.fc(x))
        hidden = (h,) if output_hidden else None
        h = h if mask is None else h.masked_fill(~mask[:, None], 0.0)
        for tensor in (*past, *(t for pair in caches for t in pair)):
            h = h + tensor
        if extra:
            h = h * extra["scale"] + sum(extra["more"])
        logits = self.head(h)
        return Output(logits, hidden) if return_dict else (logits, hidden)


CALLS: dict[str, Callable[[Tensor], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "keyword": lambda x: ((), {"x": x}),
    "**kwargs": lambda x: ((), {"inputs_embeds": x}),
    "*args": lambda x: ((x, x + 1, x - 1), {}),
    "mask": lambda x: ((x,), {"mask": torch.tensor([True, False, True])}),
    "tuples": lambda x: ((x,), {"caches": ((x, x + 1), (x, 2 * x))}),
    "dict": lambda x: ((x,), {"extra": {"scale": 0.5, "more": [x, x]}}),
    "hidden": lambda x: ((x,), {"output_hidden": True}),
    "tuple out": lambda x: ((x,), {"output_hidden": True, "return_dict": False}),
}


def flat(output: Any) -> list[Tensor]:
    logits, hidden = output if isinstance(output, tuple) else (output.logits, output.hidden)
    return [logits, *(hidden or ())]


@pytest.mark.parametrize("name", CALLS)
def test_every_form_of_call(name: str, cpu: torch.device) -> None:
    module = Model()
    fused = tk.fuse(module, min_score=0)
    args, kwargs = CALLS[name](x8())
    result, right = fused(*args, **kwargs), module(*args, **kwargs)
    assert type(result) is type(right)
    assert len(flat(result)) == len(flat(right)) == 1 + ("output_hidden" in kwargs)
    for mine, other in zip(flat(result), flat(right)):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    assert kernels(fused.plan)[:1] == GELU, fused.plan


def test_tensors_assigned_in_forward(cpu: torch.device) -> None:
    """The module has them, and nothing else that it did not have."""

    def keep(m: Layer, h: Tensor) -> Tensor:
        m.latest = h.sum() + torch.tensor(1.0)  # type: ignore[assignment]
        return h

    module = Layer(keep)
    before = set(vars(module))
    fused = tk.fuse(module, min_score=0)
    for rows in (2, 3):
        result = fused(x8(rows))
        assert type(module.latest) is Tensor
        torch.testing.assert_close(module.latest, result.sum() + 1, rtol=1e-4, atol=1e-4)
    assert set(vars(module)) == before | {"latest"}
    assert list(module.state_dict()) == ["fc.weight", "fc.bias"]


def test_what_depends_on_values(cpu: torch.device) -> None:
    module = Layer(lambda m, h: h if h.sum() > 0 else -h)
    fused = tk.fuse(module, min_score=0)
    for x in (x8() + 5, x8() - 5):
        same(fused, module, x)


def test_errors_are_the_modules(cpu: torch.device) -> None:
    def check(m: Layer, h: Tensor) -> Tensor:
        if len(h) > 2:
            raise ValueError("at most two rows")
        return h

    fused = tk.fuse(Layer(check), min_score=0)
    assert fused(x8(2)).shape == (2, 8)
    with pytest.raises(ValueError, match="at most two rows"):
        fused(x8(3))


@pytest.mark.parametrize(
    ("then", "error"),
    [
        (lambda m, h: F.batch_norm(h[:1], None, None, training=True), ValueError),
        (lambda m, h: h + "a", TypeError),
        (lambda m, h: F.linear(h, m.fc.weight[:, 1:]), RuntimeError),
    ],
    ids=["batch norm of one row", "a text", "shapes"],
)
def test_errors_of_operations_are_the_modules(
    then: Callable[..., Any], error: type[Exception], cpu: torch.device
) -> None:
    """The tracer meets them first, and would raise an error of its own."""
    module = Layer(then)
    found = []
    for called in (tk.fuse(module, min_score=0), module):
        with pytest.raises(error) as raised:
            called(x8())
        found.append((type(raised.value), str(raised.value)))
    assert found[0] == found[1]


def test_a_failing_call_does_not_run_its_parts_twice(cpu: torch.device) -> None:
    def then(m: Layer, h: Tensor) -> Tensor:
        m.gain += 1
        torch._dynamo.graph_break()
        return h + "a"  # type: ignore[operator]

    module = Layer(then)
    fused = tk.fuse(module, min_score=0)
    with pytest.raises(Exception, match="unsupported operand"):
        fused(x8())
    assert module.gain == 3.0


def test_modes_and_dtypes_are_planned_once(cpu: torch.device) -> None:
    """A loop that trains and evaluates in turn traces each once."""
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5))
    fused = tk.fuse(module, min_score=0)
    for again in (False, True):
        with torch._dynamo.config.patch(error_on_recompile=again):
            fused.train()
            assert (fused(x8()) == 0).any()
            fused.eval()
            assert not (fused(x8()) == 0).any()
    assert fused.to(torch.bfloat16)(x8().bfloat16()).dtype == torch.bfloat16


def test_flags_of_parts_stay(cpu: torch.device) -> None:
    """Frozen parts of a model that trains, say."""
    module = nn.Sequential(nn.Dropout().eval(), nn.Dropout())
    fused = tk.fuse(module)
    assert [fused.training, *(m.training for m in module)] == [True, False, True]


def test_inside_the_traces_of_others(cpu: torch.device) -> None:
    module = Layer()
    fused = tk.fuse(module, min_score=0)
    right = module(x8())
    traced = torch.compile(fused, backend="eager", fullgraph=True)
    scripted = torch.jit.trace(fused, x8())
    for call in (traced, make_fx(fused)(x8()), torch.func.vmap(fused), scripted):
        torch.testing.assert_close(call(x8()), right, rtol=1e-5, atol=1e-5)


def test_fuses_after_a_transform(cpu: torch.device) -> None:
    """torch.compile's tracer makes no graph inside torch.func's transforms, and code that it met
    there first it would never look at again."""
    module = Layer()
    fused = tk.fuse(module, min_score=0)
    for transform in (torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())):
        torch.testing.assert_close(transform(fused)(x8()), transform(module)(x8()))
    torch.testing.assert_close(fused(x8()), module(x8()), rtol=1e-5, atol=1e-5)
    assert fused.plan.steps


def test_gradients(cpu: torch.device) -> None:
    module = Layer()
    fused = tk.fuse(module, min_score=0)
    gradients = []
    for called in (fused, module):
        module.zero_grad()
        x = x8().requires_grad_()
        with torch.enable_grad():
            called(x).square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in module.parameters())])
    assert kernels(fused.plan) == GELU
    for mine, other in zip(*gradients):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_nothing_keeps_it_alive(cpu: torch.device) -> None:
    """torch.compile keeps what it compiled as long as the code that it compiled."""
    module = Layer()
    fused = tk.fuse(module, min_score=0)
    fused(x8())
    alive = [weakref.ref(fused), weakref.ref(module)]
    del fused, module
    gc.collect()
    assert [each() for each in alive] == [None, None]


# ---- torch.export ----


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["linear gelu", "x @ w.T + b", "leaky", "addmm", "x + a·y", "x²"])
def test_exported_modules_are_fused(name: str, strict: bool, cpu: torch.device) -> None:
    function, expected = FUSED[name]
    module = Apply(function)
    exported = torch.export.export(module, inputs(cpu), strict=strict).module()
    fused = tk.fuse(exported, min_score=0)
    torch.testing.assert_close(fused(*inputs(cpu)), module(*inputs(cpu)), rtol=1e-5, atol=1e-5)
    assert kernels(fused.plan) == expected, fused.plan


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("called", [False, True])
def test_fused_modules_are_exported(called: bool, strict: bool, cpu: torch.device) -> None:
    module = Layer()
    fused = tk.fuse(module, min_score=0)
    if called:
        fused(x8())
    program = torch.export.export(fused, (x8(),), strict=strict)
    torch.testing.assert_close(program.module()(x8()), module(x8()), rtol=1e-5, atol=1e-5)
