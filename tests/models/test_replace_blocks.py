"""replace_modules in blocks with a forward of their own: what is fused, and what each call sees."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations

import triton_kernels as tk
from triton_kernels._launch import Launch


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    torch.manual_seed(0)
    with tk.interpret():
        yield


class Rows(nn.Module):
    """A linear layer that keeps its weight [in, out], as GPT-2's does."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 4)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return out.view(*x.shape[:-1], -1)


class TanhGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


class LikeGPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Rows(8, 16), Rows(16, 8)
        self.act, self.dropout = TanhGELU(), nn.Dropout(0.5)

    def forward(self, hidden: Tensor | None) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(hidden))))


class LikeBert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.intermediate_act_fn = nn.Linear(8, 16), F.gelu

    def forward(self, hidden: Tensor) -> Tensor:
        return self.intermediate_act_fn(self.dense(hidden))


class LikeTimm(nn.Module):
    """Real dropout before the second layer, and a flag that is read in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.drop, self.norm, self.twice = nn.Dropout(0.5), nn.Identity(), False

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self.twice:
            x = x * 2
        return self.fc2(self.norm(self.drop(self.act(x))))


class LikeLlama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(8, 16, bias=False)
        self.up_proj = nn.Linear(8, 16, bias=False)
        self.down_proj = nn.Linear(16, 8, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class LikeT5(nn.Module):
    """Branches on the weight's dtype, and dropout before the activation's reader."""

    def __init__(self) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)
        self.dropout, self.act = nn.Dropout(0.5), nn.ReLU()

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.dropout(self.act(self.wi(hidden)))
        if isinstance(self.wo.weight, Tensor) and hidden.dtype != self.wo.weight.dtype:
            hidden = hidden.to(self.wo.weight.dtype)
        return self.wo(hidden)


class Early(LikeTimm):
    """Dropout before the activation: only without it is there anything to fuse."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.drop(self.fc1(x))))


class Counting(LikeTimm):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(self.drop(x))


class Attending(LikeTimm):
    """No activation, so nothing to fuse."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))


BLOCKS = {
    LikeGPT2: "gemm_bias_act",
    LikeBert: "linear_gelu",
    LikeTimm: "linear_gelu",
    LikeLlama: "act_mul",
    LikeT5: "linear_act",
    Early: "linear_gelu",
}


class Model(nn.Module):
    def __init__(self, block: Callable[[], nn.Module] = LikeTimm) -> None:
        super().__init__()
        self.first, self.second = block(), block()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.first(x) * 2


def fused(model: nn.Module, *args: Tensor) -> bool:
    """Whether a call starts a kernel of ours."""
    started, call = [], Launch.__call__

    def noted(self: Launch, *args: Any, **kwargs: Any) -> None:
        started.append(self)
        call(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Launch, "__call__", noted)
        model(*args)
    return bool(started)


def agree(model: nn.Module, plain: nn.Module, x: Tensor) -> None:
    """Results and gradients, against the unreplaced model in float64."""
    exact = copy.deepcopy(plain).double()
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    result, expected = model(ours), exact(theirs)
    result.square().sum().backward()
    expected.square().sum().backward()
    pairs = [(result, expected), (ours.grad, theirs.grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(model.parameters(), exact.parameters(), strict=True)]
    for got, wanted in pairs:
        assert (got is None) == (wanted is None)
        if got is not None:
            torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-4, atol=1e-4)
    model.zero_grad()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda kind: kind.__name__)
def test_block_is_fused_and_stays_what_it_was(block: type[nn.Module]) -> None:
    model = block().eval()
    plain, state, parameters = copy.deepcopy(model), model.state_dict(), list(model.parameters())
    report = tk.replace_modules(model, min_score=0)
    (line,) = report.replaced
    assert line.after.startswith(BLOCKS[block]), report
    assert isinstance(model, block)
    assert type(model).__name__ == block.__name__
    assert list(model.state_dict()) == list(state)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    for shape in ((3, 8), (2, 3, 8), (5, 8)):
        x = torch.randn(shape)
        agree(model, plain, x)
        assert fused(model, x)
    report.undo()
    assert type(model) is block
    assert vars(model).keys() == vars(plain).keys()
    assert not fused(model, torch.randn(3, 8))


def test_report_says_what_is_left_and_why() -> None:
    model = nn.ModuleDict(
        {"mlp": LikeTimm(), "attention": Attending(), "two": nn.Bilinear(8, 8, 8)}
    )
    model["whole"] = Model(Attending)
    model["whole"].head = nn.Linear(8, 8)
    report = tk.replace_modules(model.eval(), min_score=0)
    assert [line.name for line in report.replaced] == ["mlp"]
    left = {line.name: line.reason for line in report.left}
    assert "mlp.fc1" not in left
    assert left["mlp.fc2"].startswith("nothing to fuse with it")
    assert left["attention.fc1"].startswith("nothing to fuse with it")
    assert left["whole.head"].startswith("in no Sequential and no small block")
    assert not tk.replace_modules(model, min_score=0).replaced  # once is enough


def test_looking_runs_nothing() -> None:
    model = Counting().train()
    before = torch.get_rng_state()
    assert tk.replace_modules(model, min_score=0).replaced
    assert model.calls == 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("block", [LikeTimm, Early])
def test_dropout_is_real_in_training(block: type[nn.Module]) -> None:
    model = block().eval()
    plain = copy.deepcopy(model)
    tk.replace_modules(model, min_score=0)
    x = torch.randn(4, 8)
    agree(model, plain, x)
    for training in (True, False, True):
        model.train(training)
        plain.train(training)
        torch.manual_seed(1)
        got = model(x)
        torch.manual_seed(1)
        torch.testing.assert_close(got, plain(x), rtol=1e-4, atol=1e-5)
        assert fused(model, x) is (not training or block is LikeTimm)


def test_attributes_and_layers_may_change_later() -> None:
    model = LikeTimm().eval()
    plain = copy.deepcopy(model)
    tk.replace_modules(model, min_score=0)
    x = torch.randn(4, 8)
    agree(model, plain, x)
    model.twice = plain.twice = True
    agree(model, plain, x)
    model.fc1.weight, plain.fc1.weight = (nn.Parameter(torch.ones(16, 8)) for _ in "ab")
    agree(model, plain, x)
    model.act, plain.act = nn.Tanh(), nn.Tanh()
    agree(model, plain, x)
    assert not fused(model, x)  # another layer than when it was looked at


class LoRA(nn.Module):
    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.a = nn.Linear(base_layer.in_features, 2, bias=False)
        self.b = nn.Linear(2, base_layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.b(self.a(x))


class Quantised(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, (self.weight * 8).round() / 8, self.bias)


def _adapt(block: LikeTimm) -> None:
    torch.manual_seed(3)
    block.fc1 = LoRA(block.fc1)


def _quantise(block: LikeTimm) -> None:
    block.fc1.__class__ = Quantised


def _hook(block: LikeTimm) -> None:
    block.fc1.register_forward_hook(lambda module, args, result: result * 3)


def _parametrize(block: LikeTimm) -> None:
    parametrizations.weight_norm(block.fc1)


class Scaled(Tensor):
    """A tensor subclass as a weight, as sharded and quantised ones are."""


def _subclass(block: LikeTimm) -> None:
    block.fc1.weight = nn.Parameter(block.fc1.weight.data.as_subclass(Scaled))


@pytest.mark.parametrize("change", [_adapt, _quantise, _hook, _parametrize, _subclass])
@pytest.mark.parametrize("called_before", [True, False])
def test_changed_layer_is_called_as_it_is(
    change: Callable[[LikeTimm], None], called_before: bool
) -> None:
    model = LikeTimm().eval()
    plain = copy.deepcopy(model)
    tk.replace_modules(model, min_score=0)
    x = torch.randn(4, 8)
    if called_before:
        assert fused(model, x)
    change(model)
    change(plain)
    assert not fused(model, x)
    torch.testing.assert_close(model(x), plain(x))


def test_hook_on_an_activation_and_on_the_block_run() -> None:
    model, seen = LikeTimm().eval(), []
    tk.replace_modules(model, min_score=0)
    x = torch.randn(4, 8)
    model(x)
    for module in (model, model.act):
        module.register_forward_hook(lambda module, args, result: seen.append(type(module)))
    model(x)
    assert [kind.__name__ for kind in seen] == ["GELU", "LikeTimm"]


def test_copies_and_pickles_are_fused_too() -> None:
    model = Model().eval()
    plain = copy.deepcopy(model)
    tk.replace_modules(model, min_score=0)
    x = torch.randn(4, 8)
    written = io.BytesIO()
    torch.save(model, written)
    written.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for other in (*copies, torch.load(written, weights_only=False)):
        assert isinstance(other.first, LikeTimm)
        assert other.first.fc1.weight is not model.first.fc1.weight
        assert fused(other, x)
        agree(other, plain, x)
        tk.restore_modules(other)
        assert type(other.first) is LikeTimm
    fresh = Model().eval()
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(x), model(x), rtol=1e-4, atol=1e-5)


def test_torch_compile_and_export_see_the_plain_block() -> None:
    model = Model().eval()
    tk.replace_modules(model, min_score=0)
    x = torch.randn(4, 8)
    whole = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(x), model(x), rtol=1e-4, atol=1e-5)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), model(x), rtol=1e-4, atol=1e-5)
    each = torch.func.vmap(model)(x.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(each, model(x), rtol=1e-4, atol=1e-5)


def test_equal_blocks_share_their_graphs() -> None:
    model = nn.Sequential(*(LikeLlama() for _ in range(12))).eval()
    plain = copy.deepcopy(model)
    tk.replace_modules(model, min_score=0)
    torch._dynamo.utils.counters.clear()
    agree(model, plain, torch.randn(4, 8))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1  # none if another test did


def test_block_of_another_class_is_not_restored() -> None:
    model = Model().eval()
    tk.replace_modules(model, min_score=0)
    model.second.__class__ = type("Wrapped", (type(model.second),), {})
    with pytest.raises(RuntimeError, match="Wrapped was given another class"):
        tk.restore_modules(model)
    assert type(model.first) is not LikeTimm


def test_block_that_cannot_be_traced_is_left() -> None:
    class Printing(LikeTimm):
        def forward(self, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return super().forward(x)

    model = Printing().eval()
    report = tk.replace_modules(model, min_score=0)
    assert not report.replaced
    assert all("Printing cannot be traced" in line.reason for line in report.left)
    assert type(model) is Printing


def test_a_width_that_does_not_fit_is_tried_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """The first layer need not be called first."""

    class Backwards(LikeTimm):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc1(self.act(self.fc2(x)))

    model = Backwards().eval()
    plain = copy.deepcopy(model)
    report = tk.replace_modules(model, min_score=0)
    assert [line.linears for line in report.replaced] == [("fc2",)]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    agree(model, plain, torch.randn(4, 16))


@pytest.mark.parametrize("called_before", [True, False])
def test_forward_derivatives(called_before: bool) -> None:
    model = LikeTimm().eval()
    plain = copy.deepcopy(model)
    tk.replace_modules(model, min_score=0)
    x, tangent = torch.randn(2, 4, 8)
    if called_before:
        assert fused(model, x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        ours, theirs = (forward_ad.unpack_dual(m(dual)).tangent for m in (model, plain))
    torch.testing.assert_close(ours, theirs)
    assert fused(model, x)


@pytest.mark.parametrize(
    "x", [torch.ones(4, 7), torch.ones(4, 8, dtype=torch.float64)], ids=["width", "dtype"]
)
@pytest.mark.parametrize("called_before", [True, False])
@pytest.mark.parametrize("make", [LikeGPT2, LikeBert, LikeTimm, LikeLlama])
def test_errors_are_the_blocks(make: type[nn.Module], called_before: bool, x: Tensor) -> None:
    """The tracer meets them first, and would raise an error of its own."""
    model = make().eval()
    plain = copy.deepcopy(model)
    tk.replace_modules(model, min_score=0)
    if called_before:
        assert fused(model, torch.randn(4, 8))
    found = []
    for called in (model, plain):
        with pytest.raises(RuntimeError) as raised:
            called(x)
        found.append((type(raised.value), str(raised.value)))
    assert found[0] == found[1]
