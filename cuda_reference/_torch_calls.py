"""Calls functions of torch::Tensor on the host target: the Python side of csrc/torch_on_cpu.h.

A tensor is passed as its address, sizes and strides. If the function calls torch, for example
torch::zeros or .contiguous(), the call comes back to this module, and torch itself computes it.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _compilers
from cuda_reference._guards import ROOM, Given, Guards

MAX_DIMS = 64
# In the order of enum ScalarType in csrc/torch_on_cpu_tensor.h.
DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
_FORMATS = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)
_NONE, _BOOL, _INTEGER, _REAL, _TEXT, _TENSOR, _LIST, _DTYPE, _FORMAT, _TUPLE = range(10)
_DONE, _RAISED, _MISMATCH, _PYTHON_RAISED, _FAILED = range(5)


class _CTensor(ctypes.Structure):
    _fields_ = [
        ("handle", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("cuda", ctypes.c_int),
        ("size", ctypes.c_int64 * MAX_DIMS),
        ("stride", ctypes.c_int64 * MAX_DIMS),
    ]


class _CValue(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("data", ctypes.c_void_p),
    ]


# For Tensor::index: type passed by C++ → Python's index. A slice is a list, an ellipsis is text.
_INDEX: dict[type, Callable[[Any], Any]] = {list: lambda x: slice(*x), str: lambda _: ...}
_Operator = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_CValue), ctypes.c_int, ctypes.POINTER(_CValue)
)


class Exported(NamedTuple):
    """A function that PYBIND11_MODULE or TORCH_LIBRARY exports.

    Attributes:
        library: the library of TORCH_LIBRARY, else "".
        types: the types of the parameters, as text.
        names: the names of parameters, as far as py::arg gives them.
        defaults: index of a parameter → its default value.
        missing: whether the function is only declared.
        tensors: the number of tensors that it returns; -1 for a list.
        key: the dispatch key of TORCH_LIBRARY_IMPL, such as CUDA; else "".
        returns: the type of the result, as text.
    """

    number: int
    library: str
    name: str
    types: tuple[str, ...]
    names: tuple[str, ...]
    defaults: dict[int, Any]
    doc: str
    missing: bool
    tensors: int
    key: str
    returns: str


class Made(NamedTuple):
    """A tensor that a call made, at ``address``. It has ``guards`` unless a sanitizer of the
    compiler checks it. ``written``: whether its elements have values."""

    given: Given
    address: int
    guards: Guards | None
    written: bool


def said(library: ctypes.CDLL) -> Iterator[tuple[str, Any]]:
    """(name, value) of other exports of the modules: ("schema", an operator's schema with its
    library), and attributes."""
    library.crosscheck_said.restype = ctypes.c_char_p
    session, value = Session(library), _CValue()
    for i in itertools.count():
        name = library.crosscheck_said(i, ctypes.byref(value))
        if name is None:
            return
        yield name.decode(), session.received(value)


def exported(library: ctypes.CDLL) -> Iterator[Exported]:
    """The functions that a library exports. Of two with one name the last counts."""
    library.crosscheck_function.restype = ctypes.c_char_p
    library.crosscheck_message.restype = ctypes.c_char_p
    for number in range(library.crosscheck_functions()):
        texts = [library.crosscheck_function(number, what).decode() for what in range(9)]
        types = tuple(filter(None, texts[2].split(", ")))
        value, defaults = _CValue(), {}
        for place in range(len(types)):
            if library.crosscheck_default(number, place, ctypes.byref(value)):
                defaults[place] = Session(library).received(value)
        names = tuple(filter(None, texts[3].split(",")))
        yield Exported(
            number,
            texts[0],
            texts[1],
            types,
            names,
            defaults,
            texts[4],
            missing=texts[5] == "missing",
            tensors=int(texts[6]),
            key=texts[7],
            returns=texts[8],
        )


def span(name: str, t: Tensor) -> Given:
    """An argument as Given, with the memory from its first to its last element."""
    view = t.detach()
    if view.is_contiguous():
        return Given(name, view, True)
    extent = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride()) if n)
    plain = view.as_strided((extent + 1 if t.numel() else 0,), (1,))
    return Given(name, plain, True, view)


def _resized(t: Tensor, sizes: Sequence[int]) -> Tensor:
    """The first elements of ``t`` in another shape; with NaN behind them if that has more."""
    flat, count = t.reshape(-1), math.prod(sizes)
    if count > t.numel():
        more = torch.empty(count - t.numel(), dtype=t.dtype)
        more.view(torch.uint8).fill_(0xFF)
        flat = torch.cat([flat, more])
    return flat[:count].view(sizes)


def _storage(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


class Raised(Exception):
    """The C++ function threw an exception, for example by TORCH_CHECK."""


class Session:
    """One call of a function, with the tensors that it knows.

    Args:
        on_new: called with each tensor that the call makes.

    Attributes:
        guards: the guards of these tensors.
    """

    def __init__(self, library: ctypes.CDLL, on_new: Callable[[Made], None] | None = None) -> None:
        self._library = library
        self._tensors: list[Tensor] = []
        self._on_cpu: set[int] = set()
        self._storages: set[int] = set()
        self._kept: list[Any] = []
        self._raised: BaseException | None = None
        self._on_new = on_new
        self.guards: list[Guards] = []

    def add(self, like: Tensor, address: int) -> Tensor:
        """A new tensor with this one's layout and dtype at ``address``; the call knows it."""
        extent = sum((n - 1) * stride for n, stride in zip(like.shape, like.stride()))
        count = (extent + 1) * like.element_size() if like.numel() else 0
        made = torch.empty(0, dtype=like.dtype)
        if count:
            memory = (ctypes.c_char * count).from_address(address)
            storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
            made.set_(storage, 0, like.shape, like.stride())
            self._storages.add(storage.data_ptr())
        else:
            made = made.reshape(like.shape)
        self._tensors.append(made)
        return made

    def call(self, number: int, arguments: Sequence[Any]) -> tuple[Any, int]:
        """Call a function. Returns its result, with tensors of this session, and CUDA's status.

        Raises:
            TypeError: an argument has a wrong type.
            Raised: the function threw an exception. Errors of torch inside it are raised unchanged.
        """
        values = self._array([self._sent(argument) for argument in arguments])
        operator, result, status = _Operator(self._operator), _CValue(), ctypes.c_int(0)
        self._library.crosscheck_operators(operator)
        how = self._library.crosscheck_call(
            number, values, ctypes.byref(result), ctypes.byref(status)
        )
        if how == _PYTHON_RAISED and self._raised is not None:
            raise self._raised
        if how in (_RAISED, _MISMATCH):
            text = self._library.crosscheck_message().decode(errors="replace")
            raise TypeError(text) if how == _MISMATCH else Raised(text)
        return (None if how == _FAILED else self.received(result)), status.value

    # ---- From and to C++ ----

    def _sent(self, x: Any) -> _CValue:
        if x is None:
            return _CValue(_NONE)
        if isinstance(x, bool):
            return _CValue(_BOOL, x)
        if isinstance(x, int):
            return _CValue(_INTEGER, x)
        if isinstance(x, float):
            return _CValue(_REAL, 0, x)
        if isinstance(x, torch.dtype):
            return _CValue(_DTYPE, DTYPES.index(x))
        if isinstance(x, str):
            text = ctypes.create_string_buffer(x.encode())
            self._kept.append(text)
            return _CValue(_TEXT, 0, 0, ctypes.addressof(text))
        if isinstance(x, Tensor):
            return self._sent_tensor(x)
        if isinstance(x, (list, tuple)):
            values = self._array([self._sent(each) for each in x])
            return _CValue(_LIST, len(x), 0, ctypes.addressof(values))
        raise TypeError(f"a {type(x).__name__} cannot be passed to CUDA C++")

    def _sent_tensor(self, t: Tensor) -> _CValue:
        handle = next(i for i, known in enumerate(self._tensors) if known is t)
        raw = _CTensor(handle, t.data_ptr(), DTYPES.index(t.dtype), t.dim())
        raw.cuda = handle not in self._on_cpu
        raw.size[: t.dim()] = t.shape
        raw.stride[: t.dim()] = t.stride()
        self._kept.append(raw)
        return _CValue(_TENSOR, handle, 0, ctypes.addressof(raw))

    def _array(self, values: Sequence[_CValue]) -> Any:
        array = (_CValue * max(len(values), 1))(*values)
        self._kept.append(array)
        return array

    def received(self, value: _CValue) -> Any:
        """A C++ value as a Python value."""
        kind = value.kind
        if kind == _BOOL:
            return bool(value.integer)
        if kind == _INTEGER:
            return value.integer
        if kind == _REAL:
            return value.real
        if kind == _TEXT:
            return ctypes.string_at(value.data).decode(errors="replace")
        if kind == _TENSOR:
            return self._tensors[value.integer]
        if kind == _DTYPE:
            return DTYPES[value.integer]
        if kind == _FORMAT:
            return _FORMATS[value.integer]
        if kind in (_LIST, _TUPLE):
            values = ctypes.cast(value.data, ctypes.POINTER(_CValue))
            items = [self.received(values[i]) for i in range(value.integer)]
            return tuple(items) if kind == _TUPLE else items
        return None

    # ---- Calls of torch by a function ----

    def _operator(self, name: bytes, arguments: Any, count: int, result: Any) -> int:
        try:
            received = [self.received(arguments[i]) for i in range(count)]
            on_cpu = self._device(received)
            what = name.decode()
            if what == "resize_" and not received[0].numel():
                what, received = "empty", [received[1], received[0].dtype]
            with torch.no_grad():
                made = self._made(what, received)
                if what in ("zero_", "fill_", "copy_", "index_put_"):
                    self._stored(made)
            held = self._held(what, made, on_cpu)
            result[0] = self._sent(held)
        except BaseException as error:  # noqa: BLE001 -- it must not propagate through C++
            self._raised = error
            return 1
        return 0

    def _stored(self, t: Tensor) -> None:
        """Tell a watching runtime that torch stored to all elements of a tensor."""
        if not hasattr(self._library, "crosscheck_stored"):
            return
        if t.is_contiguous():
            address, size = ctypes.c_uint64(t.data_ptr()), ctypes.c_uint64(t.nbytes)
            self._library.crosscheck_stored(address, size)
        else:
            for part in t.unbind():
                self._stored(part)

    def _device(self, received: list[Any]) -> bool:
        """Whether the result claims to be on the CPU. Others claim to be on the GPU."""
        device = next((x for x in received if isinstance(x, str)), None)
        if device is not None:
            return device == "cpu"
        return any(x is self._tensors[i] for i in self._on_cpu for x in received)

    @staticmethod
    def _made(name: str, received: list[Any]) -> Any:
        kinds = {torch.dtype: "dtype", torch.memory_format: "memory_format"}
        named = {kinds[type(x)]: x for x in received if type(x) in kinds}
        plain = [x for x in received if type(x) not in (str, *kinds)]
        if name in ("cpu", "cuda"):
            return plain[0].clone()
        if name == "to":
            return plain[0].to(**named) if named else plain[0].clone()
        if name == "slice":
            dim, *bounds = plain[1:]
            return plain[0][(slice(None),) * dim + (slice(*bounds),)]
        if name == "resize_":
            return _resized(*plain)
        if name in ("index", "index_put_"):
            at = tuple(_INDEX.get(type(x), lambda x: x)(x) for x in plain[1])
            if name == "index":
                return plain[0][at]
            plain[0][at] = plain[2]
            return plain[0]
        if "dtype" in named and name not in ("sum", "mean"):
            return getattr(torch, name)(*plain, **named)
        function = getattr(Tensor, name, None) or getattr(torch, name)
        return function(*plain, **named)

    def _held(self, name: str, made: Any, on_cpu: bool) -> Any:
        if isinstance(made, tuple):
            return [self._held(name, each, on_cpu) for each in made]
        if not isinstance(made, Tensor) or any(known is made for known in self._tensors):
            return made
        if made.numel() and made.untyped_storage().data_ptr() in self._storages:  # a view
            self._tensors.append(made)
        else:
            dense = torch.empty_like(made, device="meta").stride() == made.stride()
            made = self._placed(name, made if dense else made.contiguous())
        if on_cpu:
            self._on_cpu.add(len(self._tensors) - 1)
        return made

    def _placed(self, name: str, plain: Tensor) -> Tensor:
        """A new tensor between guards, or in memory where AddressSanitizer finds accesses outside
        of it."""
        written = not name.startswith("empty")
        if not written and plain.numel():  # NaN, so that elements that are never stored show
            flat = plain.as_strided((plain.numel(),), (1,))  # one element has any stride
            flat.view(torch.uint8).fill_(0xFF)
        given = span(f"the result of {name}()", plain)
        guards = None
        if _compilers._sanitizer() == "address":
            made = plain.clone()  # in memory of exactly its size
            self._tensors.append(made)
            self._storages.add(_storage(made))
        else:
            guards = Guards([given], 0 if self._on_new is None else ROOM)
            self.guards.append(guards)
            made = self.add(plain, guards.addresses[0])
        if self._on_new is not None:
            address = made.data_ptr() if guards is None else guards.addresses[0]
            self._on_new(Made(given, address, guards, written))
        return made

    def damaged(self) -> str | None:
        """A description of an overwritten byte outside the tensors that the call made, or None."""
        for guards in self.guards:
            if (address := guards.damaged()) is not None:
                return guards.text(address)
        return None
