"""Writes into tensors that a caller gave: autograd sees them by the tensors' version counters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from every_function import IN_PLACE, functions

import cuda_reference
import triton_kernels
from compare.checking.implementations import MODES
from cuda_reference import _build


@pytest.fixture
def device(mode: str) -> Iterator[torch.device]:
    interpreted = mode == "triton-interpreted"
    with triton_kernels.interpret() if interpreted else contextlib.nullcontext():
        yield torch.device(MODES[mode][1])


def test_every_out_counts_up(mode: str, device: torch.device) -> None:
    for function in functions(mode):
        inputs, out = function.inputs(device), function.results(device)
        function(inputs, out)
        assert all(t._version > 0 for t in out), function
        assert not any(t._version for t in inputs.values()), function
        before = [t._version for t in out]
        function(inputs, out)
        assert all(t._version > n for t, n in zip(out, before)), function


def test_in_place_counts_up(mode: str, device: torch.device) -> None:
    for function in functions(mode):
        if function.op not in IN_PLACE:
            continue
        for name, t in (inputs := function.inputs(device)).items():
            before = t._version
            function(inputs, [t, *function.results(device)[1:]])
            assert t._version > before, (function, name)


def test_autograd_notices_that_a_saved_tensor_was_overwritten(
    mode: str, device: torch.device
) -> None:
    for function in functions(mode):
        inputs = function.inputs(device)
        for place, like in enumerate(function.results(device)):
            leaf = torch.zeros_like(like).requires_grad_()
            saved = leaf.exp()  # whose gradient reads the result
            out = function.results(device)
            out[place] = saved.detach()
            function(inputs, out)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                saved.sum().backward()


def test_a_refused_call_leaves_the_version(mode: str, device: torch.device) -> None:
    for function in functions(mode):
        out = function.results(device)
        name, t = next(iter(function.inputs(device).items()))
        with pytest.raises(TypeError):
            function({**function.inputs(device), name: t.to(torch.complex64)}, out)
        assert not any(t._version for t in out), function


def test_inference_mode(mode: str, device: torch.device) -> None:
    """Inference tensors have no version; others are counted up in inference mode as well."""
    for function in functions(mode):
        inputs, out = function.inputs(device), function.results(device)
        right = function(inputs)
        with torch.inference_mode():
            unversioned = function.results(device)
            assert all(map(torch.equal, function(inputs, unversioned), right)), function
            function(inputs, out)
        assert all(t._version > 0 for t in out), function
        assert all(map(torch.equal, function(inputs, unversioned), right)), function


@pytest.mark.skipif(_build.unavailable("host") is not None, reason=str(_build.unavailable("host")))
def test_load_inline_counts_up_what_is_not_const() -> None:
    """A launcher may write through any pointer that is not declared const."""
    source = """
    __global__ void twice(const float* x, float* out) { out[threadIdx.x] = 2 * x[threadIdx.x]; }
    void run(const float* x, float* out, float* unused, cudaStream_t stream) {
      LAUNCH(twice, 1, 4, 0, stream, x, out);
    }"""
    declared = "const float* x, float* out, float* unused, cudaStream_t stream"
    module = cuda_reference.load_inline(source, {"run": declared})
    x, out, other = torch.ones(4), torch.zeros(4), torch.zeros(4)
    module.run(x, out, other)
    assert (x._version, out._version, other._version) == (0, 1, 1)
    module.run(x, out, None)
    assert (x._version, out._version, other._version) == (0, 2, 1)
    leaf = torch.zeros(4, requires_grad=True)
    saved = leaf.exp()
    module.run(x, saved.detach(), None)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    with torch.inference_mode():
        module.run(x, torch.zeros(4), None)
