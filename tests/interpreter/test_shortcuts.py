"""The interpreter's shortcuts: each gives what Triton's own function gives."""

from __future__ import annotations

import inspect
import itertools
import operator
from typing import Any

import numpy as np
import pytest
import triton.language as tl

from triton_kernels import interpreter
from triton_kernels.interpreter import operators, shortcuts
from triton_kernels.interpreter.handles import encode, upstream

# What stands there outside of interpreting().
TYPE, TENSOR = tl.block_type.__init__, tl.tensor.__init__
HANDLE = upstream.TensorHandle.__init__
SEMANTIC = type(upstream.interpreter_semantic)
SHORT = ("broadcast_impl_value", "binary_op_type_checking_impl", "cast", "expand_dims", "full")
UPSTREAMS = {name: getattr(SEMANTIC, name) for name in SHORT}
WITH_ELEMENT = tl.block_type.with_element_ty
SHAPES: list[Any] = [[4], [2, 8], [2, tl.constexpr(8)], tl.tuple([2, 8]), [1, 1, 1]]
ELEMENTS = [tl.int1, tl.int32, tl.float32, tl.pointer_type(tl.float32), tl.pointer_type(tl.int8)]


def fields(made: Any) -> dict[str, Any]:
    found = dict(vars(made))
    found["shape"] = [getattr(n, "value", n) for n in found["shape"]]
    found["numel"] = getattr(found["numel"], "value", found["numel"])
    return found


def upstreams(kind: Any, constructor: Any, *args: Any) -> Any:
    made = object.__new__(kind)
    constructor(made, *args)
    return made


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_types_and_tensors_have_the_fields_of_upstreams(shape: Any, element: Any) -> None:
    with interpreter.interpreting():
        for _ in range(2):  # the first is made by Triton, the second one is not
            kind = tl.block_type(element, shape)
            assert fields(kind) == fields(upstreams(tl.block_type, TYPE, element, shape))
            assert kind.element_ty is element
            assert type(kind.shape) is type(upstreams(tl.block_type, TYPE, element, shape).shape)
            handle = object()
            made = tl.tensor(handle, kind)
            assert fields(made) == fields(upstreams(tl.tensor, TENSOR, handle, kind))
            assert made.handle is handle
            assert made.type is kind
            single = tl.tensor(handle, element)
            assert fields(single) == fields(upstreams(tl.tensor, TENSOR, handle, element))


@pytest.mark.parametrize("shape", [[3], [], [4.0], (4,)], ids=str)
def test_a_shape_is_refused_as_upstream_does(shape: Any) -> None:
    with interpreter.interpreting():
        tl.block_type(tl.int32, [4])
        with pytest.raises((AssertionError, TypeError, ValueError)) as refused:
            upstreams(tl.block_type, TYPE, tl.int32, shape)
        for _ in range(2):
            with pytest.raises(type(refused.value)) as again:
                tl.block_type(tl.int32, shape)
            assert str(again.value) == str(refused.value)


def test_other_classes_are_left_to_upstream() -> None:
    """Gluon's types are block types with fields of their own, set before or after."""

    class Laid(tl.block_type):
        def __init__(self, element: Any, shape: Any, layout: str) -> None:
            self.layout = layout
            super().__init__(element, shape)

    with interpreter.interpreting():
        shortcuts._types.clear()
        assert Laid(tl.int32, [16, 2], "rows").layout == "rows"
        assert not hasattr(tl.block_type(tl.int32, [16, 2]), "layout")
        assert Laid(tl.int32, [16, 2], "columns").layout == "columns"


def tile(dtype: Any, shape: tuple[int, ...]) -> Any:
    handle = encode(np.resize(np.array([5, -3, 0, 7]), shape or (1,)), dtype)
    return tl.tensor(handle, tl.block_type(dtype, list(shape)) if shape else dtype)


DTYPES = [tl.int1, tl.int8, tl.uint8, tl.int32, tl.uint32, tl.int64, tl.float16, tl.bfloat16]
DTYPES += [tl.float32, tl.float64]
NUMBERS: list[Any] = [0, 3, -3, 2**31, 2**40, True, 0.0, -0.0, 0.1, -1e300, float("inf")]
POINTER = tl.tensor(
    upstream.TensorHandle(np.full((4,), 64, dtype=np.uint64), tl.pointer_type(tl.int16)),
    tl.block_type(tl.pointer_type(tl.int16), [4]),
)
SCALAR_POINTER = tl.tensor(
    upstream.TensorHandle(np.array([64], dtype=np.uint64), POINTER.dtype), POINTER.dtype
)
OPERATORS = {f"__{name}__": getattr(operator, f"__{name}__") for name in operators.NAMES}


def told(operation: Any, *operands: Any) -> Any:
    """Type and numbers of a result, or the error."""
    try:
        made = operation(*operands)
    except Exception as error:  # noqa: BLE001 - both must give the same
        return type(error), str(error)
    return str(made.type), made.handle.data.dtype, str(made.handle.data.tolist())  # nan is nan


def patch_upstreams_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in UPSTREAMS.items():
        monkeypatch.setattr(SEMANTIC, name, function)
    for name in (*OPERATORS, *(f"__r{name}__" for name in operators.SWAPPED)):
        shortcut = getattr(tl.tensor, name)
        assert inspect.unwrap(shortcut) is not shortcut
        monkeypatch.setattr(tl.tensor, name, inspect.unwrap(shortcut))


@pytest.mark.parametrize("name", OPERATORS)
def test_operations_give_upstreams_types_and_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = [(), (4,), (2, 4), (2, 1), (1, 4)]
    operation = OPERATORS[name]
    with interpreter.interpreting(), np.errstate(all="ignore"):
        tiles = [tile(dtype, shape) for dtype in DTYPES for shape in shapes]
        pairs = list(itertools.product(tiles, [*tiles, *NUMBERS]))
        pairs += itertools.product(NUMBERS, tiles)
        for pointer in (POINTER, SCALAR_POINTER):
            pairs += [pair for each in tiles for pair in ((pointer, each), (each, pointer))]
        for _ in range(2):  # Triton broadcasts the first of each pair of shapes
            own = [told(operation, *pair) for pair in pairs]
        patch_upstreams_in(monkeypatch)
        for pair, got in zip(pairs, own):
            assert got == told(operation, *pair), pair
        monkeypatch.undo()


def test_operands_are_left_alone_and_layouts_are_upstreams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A result's memory is its own, in upstream's order, as sums of floats depend on it."""
    with interpreter.interpreting():
        tiles = [tile(tl.float32, shape) for shape in [(2, 4), (2, 1), (1, 4), (4, 2)]]
        tiles[-1].handle.data = tiles[-1].handle.data.T
        tiles[-1] = tl.tensor(tiles[-1].handle, tiles[0].type)
        pairs = list(itertools.product(tiles, [*tiles, 3.0]))
        for _ in range(2):
            own = [operator.add(*pair).handle.data for pair in pairs]
        patch_upstreams_in(monkeypatch)
        for (lhs, rhs), got in zip(pairs, own):
            assert got.strides == operator.add(lhs, rhs).handle.data.strides
            assert not np.shares_memory(got, lhs.handle.data)
        monkeypatch.undo()


def test_conversions_and_tiles_give_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = [(), (4,), (2, 4)]
    kinds = [*DTYPES, tl.int16, tl.uint64, tl.float8e5]
    calls = [
        *(
            (lambda x, to: x.to(to), tile(kind, shape), to)
            for kind in DTYPES
            for shape in shapes
            for to in kinds
        ),
        *(
            (lambda x, index: x[index], tile(kind, shape), index)
            for kind in DTYPES
            for shape in shapes[1:]
            for index in (None, (None, slice(None)), (slice(None), None), (slice(None), 0))
        ),
        *itertools.product([lambda *a: tl.full(*a)], [[8], [2, 4], [], [3]], NUMBERS, kinds),
    ]
    with interpreter.interpreting(), np.errstate(all="ignore"):
        for _ in range(2):
            own = [told(*call) for call in calls]
        patch_upstreams_in(monkeypatch)
        for call, got in zip(calls, own):
            assert got == told(*call), call
        monkeypatch.undo()


def test_handles_hold_no_wider_numbers_than_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [np.zeros(4, f"{kind}{width}") for kind in "iuf" for width in (2, 4, 8)]
    with interpreter.interpreting():
        calls = list(itertools.product([upstream.TensorHandle], numbers, [*DTYPES, POINTER.dtype]))
        own = [held(*call) for call in calls]
        monkeypatch.setattr(upstream.TensorHandle, "__init__", HANDLE)
        assert own == [held(*call) for call in calls]
        monkeypatch.undo()


def held(constructor: Any, data: Any, dtype: Any) -> Any:
    try:
        made = constructor(data, dtype)
    except ValueError as error:
        return str(error)
    return id(made.data), made.dtype, made.attr


def test_types_of_one_shape_and_other_elements() -> None:
    with interpreter.interpreting():
        for shape in SHAPES:
            tile = tl.block_type(tl.int32, shape)
            for element in ELEMENTS:
                made = [tile.with_element_ty(element) for _ in range(2)]
                for each in made:
                    assert each.element_ty is element
                    assert fields(each) == fields(WITH_ELEMENT(tile, element))
