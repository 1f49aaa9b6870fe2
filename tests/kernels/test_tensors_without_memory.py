"""Tensors that have no memory of their own: an error before anything is launched, or the right
result, where a kernel that took their address would end the process."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from every_function import PAIRS, Function, functions
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.masked import MaskedTensor, masked_tensor

import cuda_reference
import triton_kernels
from compare.checking.implementations import MODES
from compare.ops import SPECS
from compare.specs.elementwise import Elementwise
from cuda_reference import _build

needs_host_target = pytest.mark.skipif(
    _build.unavailable("host") is not None, reason=str(_build.unavailable("host"))
)


class Wrapper(Tensor):
    """A tensor that holds another one."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        bare = [a.inner if isinstance(a, cls) else a for a in args]
        return func(*bare, **(kwargs or {}))


class Plain(Tensor):
    """A subclass that is memory like any other tensor."""


class PlainWithDispatch(Tensor):
    """The same, and it sees every op."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


def escaped(transform: Callable[..., Any], t: Tensor) -> Tensor:
    """What a function saw inside of a torch.func transform, after that has ended."""
    seen: list[Tensor] = []
    transform(lambda x: (seen.append(x), x.sum())[1])(t)
    return seen[0]


def freed(t: Tensor, view: bool = False) -> Tensor:
    """As FSDP leaves parameters; a view of nothing may have an address that is not 0."""
    if view:
        whole = torch.ones(t.numel() + 8, dtype=t.dtype, device=t.device)
        t = whole[8:].view(t.shape)
    t.untyped_storage().resize_(0)
    return t


def masked(t: Tensor) -> MaskedTensor:
    with pytest.warns(UserWarning, match="prototype"):
        return masked_tensor(t, t > 0)


def distributed(t: Tensor) -> DTensor:
    mesh = DeviceMesh(t.device.type, [0], _init_backend=False, _rank=0)
    return DTensor.from_local(t, mesh, [Replicate()], run_check=False)


# Kinds that reach a launch on both sides, with words that an error must have.
EVERYWHERE: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "functional": (torch._to_functional_tensor, "functional tensor"),
    "zero": (lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype, device=t.device), "Zero"),
    "freed": (freed, "storage was freed"),
    "view of freed": (lambda t: freed(t, view=True), "storage was freed"),
    "out of vmap": (lambda t: escaped(torch.func.vmap, t), "vmap"),
    "out of functionalize": (lambda t: escaped(torch.func.functionalize, t), "functional tensor"),
}
# Kinds that torch's dispatcher hands on, where it is asked; FakeTensors have storages, empty ones.
SUBCLASSES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "wrapper": (Wrapper, "Wrapper"),
    "fake": (lambda t: FakeTensorMode().from_tensor(t), FakeTensor.__qualname__),
    "DTensor": (distributed, DTensor.__qualname__),
    "masked": (masked, MaskedTensor.__qualname__),
}
OTHERS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "grad": (lambda t: escaped(torch.func.grad, t), "torch.func.grad"),
    "nested": (lambda t: torch.nested.nested_tensor([t]), "nested tensor"),
    "jagged": (lambda t: torch.nested.nested_tensor([t], layout=torch.jagged), "nested tensor"),
    "sparse": (Tensor.to_sparse, "torch.sparse_coo"),
}
CUDA_SIDE = {**EVERYWHERE, **OTHERS}


@pytest.fixture
def device(mode: str) -> Iterator[torch.device]:
    interpreted = mode == "triton-interpreted"
    with triton_kernels.interpret() if interpreted else contextlib.nullcontext():
        yield torch.device(MODES[mode][1])


def made(make: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    return make(torch.ones(like.shape, dtype=like.dtype, device=like.device))


def refusals(
    function: Function, device: torch.device, make: Callable[[Tensor], Tensor], words: str
) -> Iterator[str]:
    """What is wrong where a tensor of the kind stands for one argument after the other."""
    if make is masked and function.dtype is torch.bfloat16:
        return  # there are none
    count = len(function.results(device))
    places: list[Any] = [*function.inputs(device), *range(count)]
    for place in places:
        inputs, out = function.inputs(device), function.results(device)
        plain = list(out)
        if isinstance(place, str):
            inputs[place] = made(make, inputs[place])
        else:
            out[place] = made(make, out[place])
            del plain[place]
        argument = f"'{place}'" if isinstance(place, str) else "'out'"
        try:
            function(inputs, out)
        except TypeError as error:
            text = str(error)
            if not (text.startswith(f"{function.op}()") and argument in text and words in text):
                yield f"{function} {place}: {text}"
        except Exception as error:  # noqa: BLE001 - any other error is the finding
            yield f"{function} {place}: {type(error).__name__}: {error}"
        else:
            yield f"{function} {place}: no error"
        if not all(t.isnan().all() for t in plain):
            yield f"{function} {place}: something was written"


CUDA_MODES = pytest.mark.parametrize("mode", ["cuda-host", "cuda-gpu"], indirect=True)


@pytest.mark.parametrize("kind", CUDA_SIDE)
@CUDA_MODES
def test_the_cuda_side_refuses_them(kind: str, mode: str, device: torch.device) -> None:
    wrong = [text for f in functions(mode) for text in refusals(f, device, *CUDA_SIDE[kind])]
    assert not wrong, "\n".join(wrong)


@CUDA_MODES
def test_the_cuda_side_hands_subclasses_on(mode: str, device: torch.device) -> None:
    """To torch's dispatcher, which hands them on: as inputs, as results, and where a mode is."""
    for function in functions(mode):
        right = function(function.inputs(device))
        wrapped = {name: Wrapper(t) for name, t in function.inputs(device).items()}
        assert all(map(torch.equal, function(wrapped), right)), function
        out = [Wrapper(t) for t in function.results(device)]
        assert all(a is b for a, b in zip(function(function.inputs(device), out), out)), function
        assert all(torch.equal(t.inner, r) for t, r in zip(out, right)), function
        with FakeTensorMode() as fakes:
            inputs = {n: fakes.from_tensor(t) for n, t in function.inputs(device).items()}
            found = function(inputs)
            out = [fakes.from_tensor(t) for t in function.results(device)]
            function(inputs, out)
        assert all(isinstance(t, FakeTensor) for t in found), function
        layouts = [(t.shape, t.stride(), t.dtype, t.device) for t in right]
        assert [(t.shape, t.stride(), t.dtype, t.device) for t in found] == layouts, function


@pytest.mark.parametrize("kind", ["DTensor", "masked"])
@needs_host_target
def test_what_torch_cannot_hand_on_is_an_error(kind: str) -> None:
    make, _ = SUBCLASSES[kind]
    with pytest.raises((TypeError, NotImplementedError)), warnings.catch_warnings(record=True):
        cuda_reference.square(made(make, torch.ones(4, 5)))


TRITON_MODES = ["triton-interpreted", "triton-compiled"]


@pytest.mark.parametrize("kind", EVERYWHERE)
@pytest.mark.parametrize("mode", TRITON_MODES, indirect=True)
def test_the_triton_side_refuses_what_torch_does_not_hand_on(
    kind: str, mode: str, device: torch.device
) -> None:
    wrong = [text for f in functions(mode) for text in refusals(f, device, *EVERYWHERE[kind])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", SUBCLASSES)
@pytest.mark.parametrize("mode", TRITON_MODES, indirect=True)
def test_tritons_variants_and_pairs_of_results_refuse_subclasses(
    kind: str, mode: str, device: torch.device
) -> None:
    """These go straight to a launch."""
    make, words = SUBCLASSES[kind]
    wrong = [
        text for f in functions(mode) if f.variant for text in refusals(f, device, make, words)
    ]
    for pair in (f for f in functions(mode) if f.op in PAIRS):
        for place in range(2):
            out = pair.results(device)
            out[place] = made(make, out[place])
            with pytest.raises(TypeError, match=rf"{pair.op}\(\): argument 'out'.*{words}"):
                pair(pair.inputs(device), out)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", ["parameter", "subclass", "subclass with dispatch", "inference"])
def test_what_has_memory_is_taken(kind: str, mode: str, device: torch.device) -> None:
    make: Callable[[Tensor], Tensor] = {
        "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
        "subclass": lambda t: t.as_subclass(Plain),
        "subclass with dispatch": lambda t: Tensor._make_subclass(PlainWithDispatch, t),
        "inference": torch.inference_mode()(torch.clone),
    }[kind]
    for function in functions(mode):
        right = function(function.inputs(device))
        given = function.results(device)
        inputs = function.inputs(device)
        if function.op not in PAIRS or MODES[mode][0] == "cuda":  # its out= is for plain inputs
            inputs = {name: make(t) for name, t in inputs.items()}
        out = [make(t) for t in given]
        assert all(a is b for a, b in zip(function(inputs, out), out)), function
        for found in (out, function(inputs)):
            assert all(map(torch.equal, map(plainly, found), right)), function


def plainly(t: Tensor) -> Tensor:
    return t.as_subclass(Tensor)


# ---- where somebody makes such tensors of the results ----


def test_modes_and_transforms_that_take_the_memory_of_results(
    mode: str, device: torch.device
) -> None:
    x = torch.ones(4, 4, device=device)

    def fake(call: Callable[[], Any]) -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            call()

    def functionalized(call: Callable[[], Any]) -> None:
        torch.func.functionalize(lambda y: call())(x)

    def differentiated(call: Callable[[], Any]) -> None:
        torch.func.grad(lambda y: (call(), y.sum())[1])(x)

    wrong = []
    for function in functions(mode):
        if MODES[mode][0] == "triton" and not function.variant:
            continue  # torch's dispatcher takes it
        inputs = function.inputs(device)
        for around in (fake, functionalized, differentiated):
            if around is fake and MODES[mode][0] == "cuda":
                continue  # the dispatcher takes it
            if around is functionalized and isinstance(SPECS[function.op], Elementwise):
                continue  # the result is made like x, which is plain
            try:
                around(lambda f=function, i=inputs: f(i))
                wrong.append(f"{function} {around.__name__}: no error")
            except TypeError as error:
                if not str(error).startswith(f"{function.op}(): the result is a"):
                    wrong.append(f"{function} {around.__name__}: {error}")
    assert not wrong, "\n".join(wrong)


@needs_host_target
def test_of_plain_tensors_a_mode_that_fakes_makes_nothing_up() -> None:
    """torch runs an op that returns nothing for real then; the row is expanded."""
    x, row, out = torch.full((4, 4), 2.0), torch.arange(4.0), torch.zeros(4, 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert cuda_reference.add(x, row, out=out) is out
    assert torch.equal(out, x + row)


def test_functionalize_follows_the_triton_side(cpu: torch.device) -> None:
    x = torch.full((4, 4), 3.0)

    def model(t: Tensor) -> Tensor:
        hidden = triton_kernels.linear_gelu(triton_kernels.square(t), t)
        return triton_kernels.act_backward(hidden, triton_kernels.add(t, 1.0), "relu")[0]

    functionalize, vmap = torch.func.functionalize, torch.func.vmap
    assert torch.equal(functionalize(model)(x), model(x))
    assert torch.equal(functionalize(vmap(triton_kernels.square))(x), x * x)


# ---- kernels from elsewhere ----


@needs_host_target
@pytest.mark.parametrize("kind", [*CUDA_SIDE, *SUBCLASSES])
def test_load_inline_refuses_them(kind: str) -> None:
    make, words = {**CUDA_SIDE, **SUBCLASSES}[kind]
    source = """
    __global__ void copy_kernel(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }
    void copy(const float* x, void* out, cudaStream_t stream) {
      LAUNCH(copy_kernel, 1, 16, 0, stream, x, (float*)out);
    }"""
    module = cuda_reference.load_inline(
        source, {"copy": "const float* x, void* out, cudaStream_t stream"}
    )
    x, out = torch.ones(4, 4), torch.zeros(4, 4)
    with pytest.raises(TypeError, match=rf"copy\(\): argument 'x' .*{words}"):
        module.copy(made(make, x), out)
    with pytest.raises(TypeError, match=rf"copy\(\): argument 'out' .*{words}"):
        module.copy(x, made(make, out))
    assert not out.any()
    module.copy(torch.nn.Parameter(x, requires_grad=False), out.as_subclass(Plain))
    assert torch.equal(out, x)


@triton.jit
def copy_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i))


@pytest.mark.parametrize("kind", [*EVERYWHERE, *SUBCLASSES])
def test_the_interpreter_refuses_them(kind: str, cpu: torch.device) -> None:
    make, words = {**EVERYWHERE, **SUBCLASSES}[kind]
    x, out = torch.ones(16), torch.zeros(16)
    for arguments in ((made(make, x), out), (x, made(make, out))):
        with pytest.raises(TypeError, match=rf"copy_kernel\(\): an argument is a.*{words}"):
            copy_kernel[(1,)](*arguments, BLOCK=16)
    assert not out.any()


def test_batches_of_gradients() -> None:
    """torch.autograd's own batches and torch.func's are taken apart."""
    x = torch.randn(2, 3)
    right = torch.func.jacrev(torch.square)(x)
    with triton_kernels.interpret():
        for found in (
            torch.autograd.functional.jacobian(triton_kernels.square, x, vectorize=True),
            torch.func.jacrev(triton_kernels.square)(x),
        ):
            torch.testing.assert_close(found, right)
