"""replace_modules in tiny models of transformers, built from their configurations."""

from __future__ import annotations

import copy

import pytest
import torch

import triton_kernels as tk

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
T5 = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "d_kv": 16, "vocab_size": 64}
# Model, its configuration's arguments, and the kernel in each layer's block.
MODELS = {
    "GPT2": (
        {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64},
        "GPT2MLP",
        "gemm_bias_act",
    ),
    "Llama": ({**SIZES, "num_attention_heads": 2}, "LlamaMLP", "act_mul"),
    "Bert": ({**SIZES, "num_attention_heads": 2}, "BertIntermediate", "linear_gelu"),
    "T5": ({**T5, "feed_forward_proj": "gated-gelu"}, "T5DenseGatedActDense", "act_mul"),
}


@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_replaced_and_agree_with_float64(name: str) -> None:
    options, block, kernel = MODELS[name]
    torch.manual_seed(0)
    kind = getattr(transformers, "T5EncoderModel" if name == "T5" else f"{name}Model")
    model = kind(getattr(transformers, f"{name}Config")(**options)).eval()
    exact, keys = copy.deepcopy(model).double(), list(model.state_dict())
    tokens = torch.randint(0, 64, (2, 8))
    with tk.interpret():
        report = tk.replace_modules(model, min_score=0)
        found = [line for line in report.replaced if line.before.startswith(block)]
        assert len(found) == 2, report
        assert all(line.after.startswith(kernel) for line in found)
        assert list(model.state_dict()) == keys
        ours, theirs = model(tokens)[0], exact(tokens)[0]
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
        ours.square().sum().backward()
        theirs.square().sum().backward()
    for p, q in zip(model.parameters(), exact.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(p.grad.double(), q.grad, rtol=1e-3, atol=1e-3)
