"""Other packages as peers: what is asked of them, by modules in their place that use torch."""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from compare.cases import Case
from compare.cli import app
from compare.ops import SPECS
from compare.timing import providers, third_party


def install(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__path__ = []
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Both packages, with the signatures of their own; the names of what is called."""
    names: list[str] = []

    def noting(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            names.append(name)
            return function(*args, **kwargs)

        return call

    def addmm(
        bias: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Any:
        return torch.addmm(bias, mat1, mat2, beta=beta, alpha=alpha)

    def gemm_act(
        A: Tensor,
        B: Tensor,
        C: Tensor | None = None,
        bias: Tensor | None = None,
        activation: str | None = None,
        store_preact: bool = True,
    ) -> tuple[Tensor | None, Tensor]:
        assert C is None
        assert A.dim() == B.dim() == 2
        assert not store_preact  # that would be a second output to write
        pre = A @ B if bias is None else A @ B + bias
        acts = {
            "relu": torch.relu,
            "gelu_tanh_approx": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        }
        return None, acts[activation or ""](pre)

    functions = {
        "add": lambda A, B, *, alpha=1: torch.add(A, B, alpha=alpha),
        "square": lambda A: torch.square(A),
        "relu": lambda A: torch.relu(A),
        "mul": lambda A, B: torch.mul(A, B),
        "gelu": lambda A, *, approximate="none": torch.nn.functional.gelu(
            A, approximate=approximate
        ),
        "addmm": addmm,
    }
    install(monkeypatch, "flag_gems")
    install(monkeypatch, "flag_gems.ops", **{k: noting(k, f) for k, f in functions.items()})
    install(monkeypatch, "quack")
    install(monkeypatch, "quack.gemm_interface", gemm_act=noting("gemm_act", gemm_act))
    return names


def small(op: str) -> Case:
    """The op's timed case, but for its size."""
    spec = SPECS[op]
    timed = next(iter(spec.timed("float32", spec.default_options)))
    shape = (4, 16, 8) if len(timed.shape) == 3 else (5, 7)
    return Case(op, "float32", shape, options=timed.options)


@pytest.mark.parametrize(
    ("package", "op", "calls"),
    [
        ("flag_gems", "add", "add"),
        ("flag_gems", "square", "square"),
        ("flag_gems", "relu_scale", "relu mul"),
        ("flag_gems", "relu_scale_add", "relu mul add"),
        ("flag_gems", "linear_gelu", "addmm gelu"),
        ("flag_gems", "gemm_bias_act", "addmm relu"),
        ("quack", "linear_gelu", "gemm_act"),
        ("quack", "gemm_bias_act", "gemm_act"),
    ],
)
def test_it_is_the_same_function(called: list[str], package: str, op: str, calls: str) -> None:
    spec, case = SPECS[op], small(op)
    args, kwargs = spec.inputs(case)
    function = third_party.function(package, op)
    for _ in range(2):
        torch.testing.assert_close(function(*args, **kwargs), spec.eager(*args, **kwargs))
    assert called == 2 * calls.split()


FORWARD = [
    op
    for op, spec in SPECS.items()
    if spec.benchmarked and op not in ("sum_to", "act_mul") and not op.endswith("_backward")
]


def test_every_offer_is_tried_here() -> None:
    assert {(p, op) for p, ops in third_party.PEERS.items() for op in ops} == {
        *(("flag_gems", op) for op in FORWARD),
        ("quack", "linear_gelu"),
        ("quack", "gemm_bias_act"),
    }


def test_installed_they_are_peers(called: list[str]) -> None:
    spec = SPECS["linear_gelu"]
    case = Case("linear_gelu", "bfloat16", (512, 4096, 1024), options={"approximate": "tanh"})
    assert {"flag_gems", "quack"} <= set(providers.names(spec, case, ["peers"]))
    assert "quack" not in providers.names(SPECS["add"])
    done = CliRunner().invoke(app, ["bench", "--dry-run", "--providers", "quack"])
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * 2 * 9  # the products, 16 bits, all shapes but 333×4097×1023
    assert all(line.endswith(": quack") for line in lines)
    assert called == []


def test_not_installed_they_are_nowhere() -> None:
    if len(third_party.missing()) < len(third_party.PEERS):
        pytest.skip("one of them is installed")
    for spec in SPECS.values():
        assert not set(third_party.PEERS) & set(providers.names(spec))


def test_one_that_lacks_the_function_says_so(
    called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older release would: the error is that provider's problem, when it is first called."""
    install(monkeypatch, "flag_gems.ops")
    function = third_party.function("flag_gems", "square")
    with pytest.raises(AttributeError, match="square"):
        function(torch.ones(2))
