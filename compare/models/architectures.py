"""Common models by their configurations in transformers, without weights.

They have the widths of the published models but only a few layers. Where FLOPs are counted, they
are on the meta device, and each layer counts as often as the real model has it. Heads are left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

KEPT = 2  # layers that are made, unless more are asked for
TOKENS = 1000  # every vocabulary here is larger
Inputs = Callable[[], dict[str, Any]]


class Architecture(NamedTuple):
    """A class of transformers and its configuration.

    Attributes:
        model: the name of the class.
        layers: the real model's number of layers.
        counters: the options of the configuration that set this number.
        inputs: makes the keyword arguments of one call, on the meta device.
        options: other options of the configuration.
        part: the name of the submodule that is called; "" for the whole model.
    """

    model: str
    layers: int
    counters: tuple[str, ...]
    inputs: Inputs
    options: Mapping[str, Any] = MappingProxyType({})
    part: str = ""

    def make(self, dtype: torch.dtype, device: str = "meta", layers: int = KEPT) -> nn.Module:
        """The model with so many layers, or its ``part``; not on "meta" its weights are random.

        Raises:
            ImportError: transformers is not installed.
        """
        transformers: Any = importlib.import_module("transformers")
        cls = getattr(transformers, self.model)
        config = cls.config_class(**dict.fromkeys(self.counters, layers), **self.options)
        with torch.device(device):
            model = cls(config).eval().to(dtype)
        return model.get_submodule(self.part) if self.part else model  # type: ignore[no-any-return]

    def arguments(self, dtype: torch.dtype, device: str = "meta") -> dict[str, Any]:
        """The keyword arguments of one call; not on "meta" tensors are random."""
        return {name: _random(value, dtype, device) for name, value in self.inputs().items()}


def _random(value: Any, dtype: torch.dtype, device: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return torch.randn(value.shape, dtype=dtype, device=device)
    return torch.randint(TOKENS, value.shape, device=device)


def _tokens() -> dict[str, Any]:
    return {"input_ids": torch.zeros(8, 1024, dtype=torch.long, device="meta"), "use_cache": False}


def _sentences() -> dict[str, Any]:
    return {"input_ids": torch.zeros(32, 512, dtype=torch.long, device="meta")}


def _images() -> dict[str, Any]:
    return {"pixel_values": torch.zeros(64, 3, 224, 224, device="meta")}


def _sound() -> dict[str, Any]:
    return {"input_features": torch.zeros(8, 80, 3000, device="meta")}


_LAYERS = ("num_hidden_layers",)
ARCHITECTURES = {
    "GPT-2": Architecture("GPT2Model", 12, ("n_layer",), _tokens),
    "BERT": Architecture("BertModel", 12, _LAYERS, _sentences),
    "ModernBERT": Architecture("ModernBertModel", 22, _LAYERS, _sentences),
    "ViT": Architecture("ViTModel", 12, _LAYERS, _images),
    "DINOv2": Architecture("Dinov2Model", 12, _LAYERS, _images),
    "CLIP": Architecture("CLIPVisionModel", 12, _LAYERS, _images),
    "SigLIP": Architecture("SiglipVisionModel", 12, _LAYERS, _images),
    "Llama": Architecture("LlamaModel", 32, _LAYERS, _tokens),
    "Mistral": Architecture("MistralModel", 32, _LAYERS, _tokens),
    "Gemma": Architecture("GemmaModel", 28, _LAYERS, _tokens),
    "Phi-2": Architecture(
        "PhiModel",
        32,
        _LAYERS,
        _tokens,
        {"hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32},
    ),
    "Phi-3": Architecture("Phi3Model", 32, _LAYERS, _tokens),
    "OPT": Architecture("OPTModel", 12, _LAYERS, _tokens),
    "T5": Architecture("T5EncoderModel", 6, ("num_layers",), _sentences),
    "T5 v1.1": Architecture(
        "T5EncoderModel",
        12,
        ("num_layers",),
        _sentences,
        {"feed_forward_proj": "gated-gelu", "d_model": 768, "d_ff": 2048},
    ),
    "Whisper": Architecture(
        "WhisperModel",
        12,
        ("encoder_layers", "decoder_layers"),
        _sound,
        {
            **{"d_model": 768, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
            **{"encoder_attention_heads": 12, "decoder_attention_heads": 12},
        },
        part="encoder",
    ),
}
