"""A fused module has the attributes, items, length and forward's signature of the original."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("fresh")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = 2.0
        self._private = 1

    def double_it(self) -> float:
        return 2 * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * self.scale


def test_attributes_are_the_originals(cpu: torch.device) -> None:
    module = Scaled()
    fused, x = tk.fuse(module, min_score=0), torch.randn(4, 8)
    assert fused.linear is module.linear
    assert (fused.scale, fused.double_it()) == (2.0, 4.0)
    fused.scale = 3.0
    assert module.scale == 3.0
    torch.testing.assert_close(fused(x), module(x))
    fused.linear = nn.Linear(8, 8)
    assert module.linear is fused.linear
    torch.testing.assert_close(fused(x), module(x))
    fused.note = "of the fused one"
    assert not hasattr(module, "note")
    fused.eval()
    assert (fused.training, module.training) == (False, False)
    assert list(fused.state_dict()) == ["module.linear.weight", "module.linear.bias"]


def test_what_is_private_or_missing_is_not_forwarded() -> None:
    fused = tk.fuse(Scaled())
    for name in ("_private", "missing", "__deepcopy__"):
        assert not hasattr(fused, name)
    with pytest.raises(AttributeError, match="missing"):
        fused.missing  # noqa: B018
    with pytest.raises(TypeError):
        len(fused)
    assert fused


def test_items_and_length() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    fused = tk.fuse(module)
    assert len(fused) == 3
    assert fused[0] is module[0]
    assert fused[-1] is module[2]
    assert isinstance(fused[:2], nn.Sequential)
    assert list(fused) == list(module)
    assert tk.fuse(nn.Sequential())


@pytest.mark.parametrize("module", [Scaled(), symbolic_trace(Scaled())], ids=["plain", "graph"])
def test_copies_and_pickles(module: nn.Module, cpu: torch.device) -> None:
    """GraphModule copies itself by a method of its own."""
    fused, x = tk.fuse(module, min_score=0), torch.randn(4, 8)
    twins = [copy.deepcopy(fused), copy.copy(fused)]
    if type(module) is Scaled:
        twins.append(pickle.loads(pickle.dumps(fused)))
    for twin in twins:
        assert isinstance(twin, tk.graph.Fused)
        assert type(twin) is type(fused) or type(module) is not Scaled
        assert inspect.signature(twin.forward) == inspect.signature(module.forward)
        torch.testing.assert_close(twin(x), module(x))


class Answers(nn.Module):
    """As transformers' models: labels are among the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, labels: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        h = torch.relu(self.linear(x)) * scale
        return h if labels is None else (h - labels).square().mean()


def test_signature_is_the_originals() -> None:
    """Of the object and of its class, at which transformers' Trainer looks."""
    module = Answers()
    fused = tk.fuse(module)
    assert inspect.signature(fused.forward) == inspect.signature(module.forward)
    of_class = list(inspect.signature(type(fused).forward).parameters)
    assert of_class == list(inspect.signature(Answers.forward).parameters)
    assert type(fused).__name__ == "FusedAnswers"
    fused.module = nn.Linear(8, 8)
    assert list(inspect.signature(fused.forward).parameters) == ["input"]
    module.forward = torch.relu  # type: ignore[method-assign]  # has no signature
    assert type(tk.fuse(module)) is tk.graph.Fused
    assert type(pickle.loads(pickle.dumps(tk.fuse(nn.Linear(8, 8))))).__name__ == "FusedLinear"


def test_trainer_finds_labels_and_loss() -> None:
    transformers = pytest.importorskip("transformers")
    generic = transformers.utils.generic
    names = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.BertConfig(**names, intermediate_size=8)
    for name in ("BertForSequenceClassification", "BertForQuestionAnswering"):
        module = getattr(transformers, name)(config)
        kinds = type(tk.fuse(module)), type(module)
        for look in (generic.find_labels, generic.can_return_loss):
            ours, right = map(look, kinds)
            assert ours == right
        assert generic.find_labels(kinds[0])


def test_ensembles(cpu: torch.device) -> None:
    """stack_module_state takes models of one class."""
    models = [tk.fuse(Answers()) for _ in range(3)]
    state, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]
    one, x = copy.deepcopy(models[0]), torch.randn(4, 8)
    out = torch.func.vmap(lambda p, b: torch.func.functional_call(one, (p, b), (x,)))(
        state, buffers
    )
    torch.testing.assert_close(out, torch.stack([model.module(x) for model in models]))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
def test_export_with_dynamic_shapes(strict: bool, by_name: bool, cpu: torch.device) -> None:
    """Spelled as for the module, and the program's arguments have its names."""
    module, x = Answers(), torch.randn(4, 8)
    fused = tk.fuse(module, min_score=0)
    shapes = {0: torch.export.Dim("rows")}
    named = {"x": shapes, "labels": shapes} if by_name else (shapes, shapes)
    program = torch.export.export(fused, (x, x), dynamic_shapes=named, strict=strict)
    y = torch.randn(6, 8)
    torch.testing.assert_close(program.module()(y, y), module(y, y))
    assert program.graph_signature.user_inputs == ("x", "labels")
