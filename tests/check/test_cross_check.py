"""compare.cross_check on kernels that are not in the repository."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from compare import cross_check


@triton.jit
def cube_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * x * x, mask=i < n)


def cube(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    cube_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out


def oracle(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


INPUTS = [(torch.linspace(-2, 2, n),) for n in (1, 127, 300)]


def test_equal_pair() -> None:
    report = cross_check(triton=cube, cuda=oracle, oracle=oracle, inputs=INPUTS)
    assert report, report
    assert "bitwise equal" in str(report)
    assert json.loads(report.to_json())["passed"] is True


def test_names_the_wrong_side_and_element() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        out = oracle(x)
        out[-1] += 1
        return out

    report = cross_check(triton=cube, cuda=wrong, oracle=oracle, inputs=INPUTS)
    assert not report
    assert "cuda side" in report.verdict
    assert "element (299,): got 9.0 (0x41100000), expected 8.0 (0x41000000)" in str(report)
    found = json.loads(report.to_json())["findings"]
    assert [f["side"] for f in found if f["deviation"]] == ["cuda"] * 3


def test_both_sides_equal_and_wrong_points_at_the_oracle() -> None:
    report = cross_check(triton=cube, cuda=oracle, oracle=lambda x: x, inputs=INPUTS[1:])
    assert "suspect the oracle" in report.verdict


def test_errors_and_shapes_are_findings() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("launch failed")

    report = cross_check(triton=cube, cuda=raises, oracle=oracle, inputs=INPUTS)
    assert "RuntimeError: launch failed" in str(report)
    report = cross_check(triton=cube, cuda=lambda x: x[:1], oracle=oracle, inputs=INPUTS[1:])
    assert "returned shape [1], expected [127]" in str(report)


def test_tolerances() -> None:
    def off(x: torch.Tensor) -> torch.Tensor:
        return oracle(x) * (1 + 3 * 2.0**-23)

    def check(**tolerance):
        return cross_check(triton=cube, cuda=off, oracle=oracle, inputs=INPUTS, **tolerance)

    assert not check()
    assert check(max_ulps=8)
    assert check(bound=lambda reference, x: 1e-6 * reference.abs())
    assert not check(bound=lambda reference, x: 1e-8 * reference.abs())


def test_inputs_survive_in_place_kernels() -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(x * x)

    assert cross_check(triton=cube, cuda=in_place, oracle=oracle, inputs=INPUTS)


@pytest.mark.parametrize("inputs", [torch.ones(3), [torch.ones(3)], []])
def test_bad_inputs(inputs) -> None:
    with pytest.raises((TypeError, ValueError), match=r"cross_check\(\): argument 'inputs'"):
        cross_check(triton=cube, cuda=oracle, oracle=oracle, inputs=inputs)


def test_a_triton_side_that_launches_nothing_is_told() -> None:
    """What passes is torch."""

    def leaves_it_to_torch(x: torch.Tensor) -> torch.Tensor:
        return cube(x) if x.numel() > 2**30 else oracle(x)

    given = {"oracle": oracle, "inputs": INPUTS}
    with pytest.warns(UserWarning, match="the Triton side launched no kernel"):
        report = cross_check(triton=leaves_it_to_torch, **given)
    assert report
    assert "launched no kernel" in str(report)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "launched no kernel" not in str(cross_check(triton=cube, **given))
        assert "launched no kernel" not in str(cross_check(cuda=oracle, **given))
        assert "launched no kernel" not in str(cross_check(triton=torch.sin, **given))  # it fails


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's tensors say it themselves")
def test_functions_that_ask_for_tensors_on_a_gpu() -> None:
    """Where there is none, theirs say that they are on one: what they launch is checked."""

    def asserting(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda, "kernels need a GPU"
        return cube(x)

    def choosing(x: torch.Tensor) -> torch.Tensor:
        return cube(x) if x.is_cuda else oracle(x)

    def by_device(x: torch.Tensor) -> torch.Tensor:
        assert x.device.type == "cuda"
        assert x.get_device() == x.device.index == 0
        zero = torch.zeros(1, device=x.device).to(x.device) + x.new_zeros(1).to(device=x.device)
        return cube(x + zero) if x.device != torch.device("cpu") else oracle(x)

    def by_torch(x: torch.Tensor) -> torch.Tensor:
        if not (torch.cuda.is_available() and torch.accelerator.is_available()):
            return oracle(x)
        assert torch.cuda.device_count() == 1
        generator = torch.Generator(device=x.device).manual_seed(1)
        assert isinstance(generator, torch.Generator)
        assert isinstance(torch.default_generator, torch.Generator)
        noise = torch.rand(3, device="cuda", generator=generator)
        again = torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
        state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        return cube(x + (noise - again).sum())

    def on_streams(x: torch.Tensor) -> torch.Tensor:
        assert not torch.cuda.is_current_stream_capturing()
        side, done = torch.cuda.Stream(), torch.cuda.Event()
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            out = cube(x.pin_memory())
        out.record_stream(side)
        side.record_event(done)
        torch.cuda.current_stream().wait_event(done)
        assert done.query()
        return out

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (asserting, choosing, by_device, by_torch, on_streams):
            assert cross_check(triton=function, oracle=oracle, inputs=INPUTS)
    assert not INPUTS[0][0].is_cuda


def test_an_error_in_a_kernel_that_is_not_the_interpreters_has_its_line() -> None:
    @triton.jit
    def kernel(x_ptr, out_ptr):
        tl.store(out_ptr, tl.dot(tl.load(x_ptr), trans_b=True))  # an argument of old

    def function(x: torch.Tensor) -> torch.Tensor:
        kernel[(1,)](x, x)
        return x

    text = str(cross_check(triton=function, oracle=oracle, inputs=INPUTS[:1]))
    assert "trans_b" in text
    assert text.count("in kernel: tl.store(out_ptr, tl.dot") == 1, text


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's tensors say it themselves")
def test_a_backward_is_under_check_as_its_forward() -> None:
    """It sees tensors on a GPU, and what it never writes is poisoned."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, left: int) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx.left = left
            return cube(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            (x,) = ctx.saved_tensors
            assert x.is_cuda
            assert gradient.device.type == "cuda"
            out = torch.empty(x.shape, device="cuda")
            n = x.numel() - ctx.left
            out[:n] = (gradient * 3 * x * x)[:n]
            return out, None

    def gradient(x: torch.Tensor, left: int) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = Cube.apply(x, left)
        if x.numel() > 200:
            y.backward(torch.ones_like(y))
            return x.grad
        return torch.autograd.grad(y, x, torch.ones_like(y))[0]

    def expected(x: torch.Tensor, left: int) -> torch.Tensor:
        return 3 * x.double() ** 2

    for left in (0, 1):
        inputs = [(x, left) for (x,) in INPUTS]
        report = cross_check(triton=gradient, oracle=expected, inputs=inputs, max_ulps=4)
        assert bool(report) is (left == 0), report
        assert left == 0 or "nan" in str(report)
