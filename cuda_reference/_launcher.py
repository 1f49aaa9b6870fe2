"""A function of tensors and numbers that calls a launcher of load_inline."""

from __future__ import annotations

import ctypes
import math
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _compilers, _guards, _launch
from cuda_reference._declarations import TYPES, Parameter
from cuda_reference._on_host import OnHost

if TYPE_CHECKING:
    from cuda_reference._inline import Unit

_FLOAT_LIMIT = float.fromhex("0x1.ffffffp127")  # from here on float32 rounds to infinity


class Launcher(OnHost):
    """One callable launcher of an inline source.

    Attributes:
        symbol: the launcher's name.
        name: the source's name.
        parameters: its parameters without the stream.
        takes_stream: whether it has one. If not, it may launch on any stream, so a call waits for
            the device before and after it.
    """

    def __init__(self, unit: Unit, symbol: str, declared: Sequence[Parameter]) -> None:
        self.symbol, self.name = symbol, unit.name
        self.parameters = [parameter for parameter in declared if not parameter.is_stream]
        self.takes_stream = len(self.parameters) < len(declared)
        self._unit = unit
        self._entries: dict[_compilers.Target, Any] = {}
        names = ", ".join(parameter.name for parameter in self.parameters)
        where = "on torch's current stream" if self.takes_stream else "and waits for the device"
        self.__name__ = self.__qualname__ = symbol
        self.__doc__ = (
            f"{symbol}({names})\n\n"
            f"Launches {symbol}({', '.join(map(str, declared))})\n"
            f"of the inline CUDA source {unit.name!r} {where}."
        )

    def __repr__(self) -> str:
        return f"<launcher {(self.__doc__ or '').partition(chr(10))[0]}>"

    # ---- For tools ----

    @property
    def source(self) -> str:
        """The source's original text."""
        return self._unit.source

    @property
    def sources(self) -> dict[str, str]:
        """Name of a source file → its text."""
        return {f"{self.name}.cu": self.source}

    def described(self) -> dict[str, Any]:
        """A picklable description, from which another process can make the same launcher."""
        return {
            "form": "launcher",
            "name": self.name,
            "source": self.source,
            "functions": self._unit.functions,
            "symbol": self.symbol,
        }

    def given(self, values: Sequence[Any]) -> list[_guards.Given]:
        """The tensors among the arguments."""
        return [
            _guards.Given(parameter.name, value, not parameter.const)
            for parameter, value in zip(self.parameters, values)
            if isinstance(value, Tensor)
        ]

    def library(self, target: _compilers.Target) -> ctypes.CDLL:
        """The library of the source."""
        return self._unit.library(target)

    def machine_code(self, arch: str) -> list[tuple[bytes, str]]:
        """The cubin of the source for an architecture, and ptxas's report."""
        return [self._unit.cubin(arch)]

    # ---- The call ----

    def checked(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments, converted for the parameters: tensors, numbers and None.

        Raises:
            TypeError, ValueError, RuntimeError: they do not suit the parameters.
        """
        if len(arguments) != len(self.parameters):
            names = ", ".join(parameter.name for parameter in self.parameters)
            raise TypeError(
                f"{self.symbol}() takes {len(self.parameters)} arguments ({names}"
                f"{'; the stream is filled in' * self.takes_stream}), but got {len(arguments)}"
            )
        values: list[Any] = []
        for parameter, value in zip(self.parameters, arguments):
            if not parameter.pointer:
                value = _number(self.symbol, parameter, value)
            elif value is not None:
                value = _tensor(self.symbol, parameter, value)
            values.append(value)
        tensors = {each.name: each.tensor for each in self.given(values)}
        if not tensors:
            raise TypeError(
                f"{self.symbol}(): every pointer is None; a tensor must say which device"
            )
        device = next(iter(tensors.values())).device
        if device.type not in ("cpu", "cuda") or any(t.device != device for t in tensors.values()):
            _arguments.check_device(self.symbol, tensors)  # raises the error
        return values

    def __call__(self, *arguments: Any) -> None:
        values = self.checked(arguments)
        given = self.given(values)
        device = given[0].tensor.device
        if device.type == "cuda":
            if self._unit.sanitize is not None:
                raise ValueError(
                    f"{self.symbol}(): sanitize={self._unit.sanitize!r} is for CPU tensors"
                )
            library = self.library("cuda")
            _launch.count_up([each.tensor for each in given if each.written])
            with torch.cuda.device(device):
                stream = torch.cuda.current_stream(device).cuda_stream
                addresses = [_launch.address(each.tensor) for each in given]
                if not self.takes_stream:
                    torch.cuda.synchronize(device)
                status = self.launch("cuda", values, addresses, stream)
                if not self.takes_stream:
                    torch.cuda.synchronize(device)
            if status:
                raise self.failure(library, status, values)
        else:
            self.on_host(values, self._unit.sanitize)

    def on_gpu(self, values: Sequence[Any]) -> list[Tensor | None]:
        self(*values)
        return []

    def launch(
        self,
        target: _compilers.Target,
        values: Sequence[Any],
        addresses: Sequence[int],
        stream: int | None = None,
    ) -> int:
        """Call the library's function, with addresses for the tensors. Returns a status, 0 for
        success."""
        entry = self._entries.get(target)
        if entry is None:
            entry = getattr(self.library(target), f"crosscheck_call_{self.symbol}")
            entry.argtypes = [*(each.ctype for each in self.parameters), ctypes.c_void_p]
            self._entries[target] = entry
        pointers = iter(addresses)
        passed = (next(pointers) if isinstance(value, Tensor) else value for value in values)
        status: int = entry(*passed, stream)
        return status


def _tensor(symbol: str, parameter: Parameter, value: Any) -> Tensor:
    name = parameter.name
    t = _arguments.check_tensor(symbol, name, value, TYPES[parameter.base][1])
    if not t.is_contiguous() or t.is_conj():
        remedy = f"pass {name}.contiguous()"
        if not parameter.const:
            remedy = "write into a contiguous tensor and copy_() from it"
        raise ValueError(
            f"{symbol}(): argument '{name}' is not contiguous (shape {list(t.shape)}, strides "
            f"{list(t.stride())}), and {parameter.type} carries an address only; {remedy}"
        )
    if t.requires_grad and not parameter.const:
        raise RuntimeError(
            f"{symbol}(): argument '{name}' is written ({parameter.type}), but requires grad; "
            f"pass {name}.detach(), or declare it const"
        )
    return t


def _number(symbol: str, parameter: Parameter, value: Any) -> bool | int | float:
    name, ctype = parameter.name, parameter.ctype
    if ctype is ctypes.c_bool:
        if isinstance(value, bool):
            return value
    elif ctype in (ctypes.c_float, ctypes.c_double):
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            number = float(value)
            if ctype is ctypes.c_float and _FLOAT_LIMIT <= abs(number) < math.inf:
                raise ValueError(f"{symbol}(): argument '{name}' = {value} does not fit float")
            return number
    elif isinstance(value, numbers.Integral) and not isinstance(value, bool):
        integer = int(value)
        if ctype(integer).value != integer:
            raise ValueError(
                f"{symbol}(): argument '{name}' = {integer} does not fit {parameter.base}"
            )
        return integer
    got = type(value).__name__
    if isinstance(value, Tensor):
        got += f"; {name}.item() is its number"
    raise TypeError(f"{symbol}(): argument '{name}' is declared {parameter.type}, but got {got}")
