"""Modules of functions of torch tensors, from sources as for torch.utils.cpp_extension.

Calls with CUDA tensors use the module that torch.utils.cpp_extension builds from the unchanged
sources. Calls with CPU tensors use the same sources rewritten for the host target, where
csrc/torch_on_cpu.h replaces torch's headers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import re
import sysconfig
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cuda_reference import (
    _arguments,
    _build,
    _compilers,
    _guards,
    _operators,
    _rewriting,
    _storage,
)
from cuda_reference._host_sources import HostSources, Options
from cuda_reference._on_host import OnHost
from cuda_reference._torch_calls import (
    DTYPES,
    Exported,
    Made,
    Raised,
    Session,
    exported,
    said,
    span,
)


class Extension:
    """The result of load(), and of load_inline() in torch's form: the functions of the sources."""

    def __init__(
        self,
        name: str,
        sources: Mapping[str, str],
        options: Options,
        sanitize: str | None,
        on_gpu: Callable[[bool], Any],
        listed: bool = True,
    ) -> None:
        self._name, self._sources, self._options = name, dict(sources), options
        self._sanitize, self._on_gpu = sanitize, on_gpu
        self.__name__ = name
        LOADED.add(self)
        if not listed:  # another process needs only one function
            return
        if torch.cuda.is_available():
            names = list(self._gpu_names())
            functions = {each: Function(self, each, _doc(self._gpu, each)) for each in names}
            self.__doc__ = getattr(self._gpu, "__doc__", None)
        else:
            functions = {each: Function(self, each, f.doc) for each, f in self._exported.items()}
            self.__dict__.update((what, x) for what, x in said(self._host) if what != "schema")
        self.__dict__.update(functions)
        if self._libraries:
            _operators.register(self._operators(), functions)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self!r} has no function {name!r}")

    def __repr__(self) -> str:
        functions = [name for name, f in vars(self).items() if isinstance(f, Function)]
        return f"<CUDA sources {vars(self).get('_name')!r}: {', '.join(functions)}>"

    @functools.cached_property
    def _host_sources(self) -> HostSources:
        return HostSources(self._name, self._sources, self._options)

    def _files(self) -> list[Path]:
        """The files of the sources, and of the headers of their own that they include."""
        files = [Path(file) for file in self._sources]
        with contextlib.suppress(_compilers.BuildError):  # they have no form for the host
            files += self._host_sources.headers
        return [file for file in files if file.is_absolute()]

    @functools.cached_property
    def _host(self) -> ctypes.CDLL:
        return self._host_sources.library(self._options.of_host())

    @functools.cached_property
    def _exported(self) -> dict[str, Exported]:
        # Tensors claim to be on the GPU, so an operator's kernel for the CPU comes first here, and
        # one for CUDA replaces it.
        functions = sorted(exported(self._host), key=lambda each: each.key != "CPU")
        return {f.name: f for f in functions if not f.key.startswith(("Autograd", "Meta"))}

    def _operators(self) -> Iterator[tuple[str, str | None]]:
        """(library::name, schema) of TORCH_LIBRARY's operators. On a GPU they are registered
        already, and the schema is None."""
        if torch.cuda.is_available():
            for schema in self._gpu_schemas():
                yield f"{schema.name}.{schema.overload_name}".rstrip("."), None
            return
        schemas = {
            _operators.name_of(text): text for what, text in said(self._host) if what == "schema"
        }
        for f in self._exported.values():
            if f.library:
                name = f"{f.library}::{f.name}"
                yield name, schemas.get(name) or _operators.schema_of(name, f.types, f.returns)

    @functools.cached_property
    def _libraries(self) -> list[str]:
        """The libraries of operators that the sources define."""
        return _rewriting.libraries("\n".join(self._sources.values()))

    def _machine_code(self, arch: str) -> list[tuple[bytes, str]]:
        """For each .cu file the cubin that nvcc makes with torch's headers and the given flags, and
        ptxas's report."""
        from torch.utils import cpp_extension

        folders = [*self._options.includes, *cpp_extension.include_paths()]
        folders.append(sysconfig.get_paths()["include"])
        flags = ["-std=c++17", *cpp_extension.COMMON_NVCC_FLAGS, "-w"]
        flags.append(f"-DTORCH_EXTENSION_NAME={self._name}")
        made = []
        for file, text in self._sources.items():
            path = Path(file)
            if path.suffix != ".cu":
                continue
            folder = path.parent
            if not path.is_absolute():  # a string of load_inline: torch adds this line, too
                text = f"#include <torch/extension.h>\n{text}"
                digest = hashlib.sha256(text.encode()).hexdigest()
                folder = _compilers.cache_directory("inline", f"{self._name}-{digest[:12]}")
                with _build.workspace(_compilers.cache_directory()) as work:
                    _storage.write({folder / path.name: text.encode()}, work)
            options = (*flags, *self._options.cuda_cflags, *(f"-I{each}" for each in folders))
            made.append(_build.cubin(path.stem, arch, csrc=folder, flags=options))
        return made

    def _parameters(self, symbol: str) -> list[str]:
        """The names of a function's parameters, if its definition is not in a macro; else []."""
        for text in self._sources.values():
            text = re.sub(r"//.*|/\*[\s\S]*?\*/", "", text)
            if match := re.search(rf"\b{symbol}\s*\(([^()]*)\)\s*\{{", text):
                declared = (" ".join(each.split()) for each in match[1].split(","))
                return [re.sub(r"\s*=.*|.*\W(?=\w)", "", each) for each in declared]
        return []

    @functools.cached_property
    def _gpu(self) -> Any:
        """The module that torch.utils.cpp_extension builds."""
        bound = any("PYBIND11_MODULE" in text for text in self._sources.values())
        return self._on_gpu(bound or not self._libraries)

    def _gpu_names(self) -> Iterator[str]:
        yield from (name for name in dir(self._gpu) if callable(getattr(self._gpu, name)))
        for schema in self._gpu_schemas():
            yield schema.name.partition("::")[2]

    def _gpu_schemas(self) -> Iterator[Any]:
        """The schemas of the operators, which are registered when the module is loaded."""
        for schema in torch._C._jit_get_all_schemas() if self._libraries else ():
            if schema.name.partition("::")[0] in self._libraries:
                yield schema

    def _gpu_function(self, name: str) -> Any:
        module = self._gpu
        for library in self._libraries:
            if hasattr(getattr(torch.ops, library), name):
                return getattr(getattr(torch.ops, library), name)
        return getattr(module, name)


LOADED: weakref.WeakSet[Extension] = weakref.WeakSet()


class Function:
    """One callable function of the sources."""

    def __init__(self, module: Extension, name: str, doc: str | None = None) -> None:
        self._module = module
        self.__name__ = self.__qualname__ = name
        self.__doc__ = doc

    def __repr__(self) -> str:
        return f"<function {self.__name__}() of {self._module!r}>"

    def machine_code(self, arch: str) -> list[tuple[bytes, str]]:
        """For every .cu file of the sources, the cubin for an architecture, and ptxas's report."""
        return self._module._machine_code(arch)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        by_name = {
            f"argument {i}": t for i, t in enumerate(_flat([*arguments, *named.values()])[0])
        }
        tensors = {name: t for name, t in by_name.items() if isinstance(t, Tensor)}
        devices = {t.device.type for t in tensors.values()}
        sanitize = self._module._sanitize
        if devices == {"cuda"}:
            if sanitize is not None:
                raise ValueError(f"{self.__name__}(): sanitize={sanitize!r} is for CPU tensors")
            return self._module._gpu_function(self.__name__)(*arguments, **named)
        if devices - {"cpu"}:
            _arguments.check_device(self.__name__, tensors)  # raises the error
        call, values = self.prepared(arguments, named)
        return call.on_host(values, sanitize)

    def prepared(
        self, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Call, list[Any]]:
        """A call with these arguments, and its values with lists flattened."""
        call = Call(self._module, self.__name__)
        return call, call.bound(arguments, named)


# For each argument None, or for a list the same for its items.
_Nesting: TypeAlias = list["_Nesting | None"]


def _flat(arguments: Sequence[Any]) -> tuple[list[Any], _Nesting]:
    """Arguments with lists flattened, and their nesting."""
    flat: list[Any] = []
    nesting: _Nesting = []
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            own, inner = _flat(argument)
            flat += own
            nesting.append(inner)
        else:
            flat.append(argument)
            nesting.append(None)
    return flat, nesting


def _nested(flat: Iterator[Any], nesting: _Nesting) -> list[Any]:
    """Arguments with their lists restored."""
    return [next(flat) if inner is None else _nested(flat, inner) for inner in nesting]


def _tensors(returned: Any) -> list[Tensor | None]:
    """The tensors among results; None for an element that is None."""
    if not isinstance(returned, (list, tuple)):
        return [returned] if isinstance(returned, Tensor) else []
    return [each for each in _flat(returned)[0] if each is None or isinstance(each, Tensor)]


class Call(OnHost):
    """One call of a function with CPU tensors."""

    says_const = False

    def __init__(self, module: Extension, symbol: str) -> None:
        self.symbol, self.name = symbol, module._name
        self._module = module
        if symbol not in module._exported:
            raise AttributeError(f"the host target's build of {module!r} does not have {symbol}()")
        self._function = module._exported[symbol]
        if self._function.missing:
            left_out = module._host_sources.left_out
            why = "add the one that does"
            if left_out:
                why = f"left out: {'; '.join(left_out)}"
            raise RuntimeError(
                f"{symbol}() is declared, but none of the sources of {self.name!r} that were "
                f"loaded defines it; {why}"
            )
        self.tensors = self._function.tensors
        self._nesting: _Nesting = []
        self._session: Session | None = None
        self._also: Callable[[Made], None] | None = None
        self._returned: Any = None
        self._values: Sequence[Any] = ()
        self._copies: list[Tensor] = []

    def failure(self, library: ctypes.CDLL, status: int, values: Sequence[Any]) -> RuntimeError:
        """The error for a launch that failed. A function that no source defines is at address 0."""
        error = super().failure(library, status, values)
        if "crashed outside of its kernels" not in str(error):
            return error
        if left_out := self._module._host_sources.left_out:
            why = f"a function of a source that was left out: {'; '.join(left_out)}"
        elif lost := _build.undefined(library):
            more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
            why = f"a function that none of its sources defines: {', '.join(lost[:3])}{more}"
        else:
            return error
        return RuntimeError(f"{error}, perhaps in a call of {why}")

    def bound(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """The arguments in order, completed by defaults, with lists flattened.

        Raises:
            TypeError, RuntimeError, ValueError: they do not suit the function.
        """
        types, names = self._function.types, self._function.names
        placed = dict(enumerate(arguments))
        for name, value in named.items():
            if name not in names or (place := names.index(name)) in placed:
                raise TypeError(f"{self.symbol}(): no argument {name!r}, or one given twice")
            placed[place] = value
        placed = {**self._function.defaults, **placed}
        if sorted(placed) != list(range(len(types))):
            said = ", ".join(types)
            raise TypeError(
                f"{self.symbol}() takes {len(types)} arguments ({said}), but got {len(arguments)}"
                + (f" and {', '.join(named)}" if named else "")
            )
        values, self._nesting = _flat([placed[place] for place in range(len(types))])
        for place, value in enumerate(values):
            if isinstance(value, Tensor):
                name = f"argument {place}"
                # As in torch, a kernel's stores have no gradient, even if one is requested.
                _arguments.check_tensor(self.symbol, name, value.detach(), DTYPES)
                if value.is_conj() or value.is_neg():
                    raise ValueError(f"{self.symbol}(): {name} is a lazy view; pass its clone()")
        return values

    @property
    def sources(self) -> Mapping[str, str]:
        return self._module._host_sources.originals

    def machine_code(self, arch: str) -> list[tuple[bytes, str]]:
        return self._module._machine_code(arch)

    def described(self) -> dict[str, Any]:
        options = vars(self._module._options)
        return {
            "form": "extension",
            "name": self.name,
            "sources": self._module._sources,
            "options": options,
            "symbol": self.symbol,
            "nesting": self._nesting,
            "on_gpu": self._module._on_gpu,
        }

    def again(self, nesting: _Nesting) -> None:
        """Set the nesting of arguments that another process has flattened."""
        self._nesting = nesting

    def given(self, values: Sequence[Any]) -> list[_guards.Given]:
        names = self._function.names or self._module._parameters(self.symbol)
        plain = not any(isinstance(inner, list) for inner in self._nesting)
        return [
            span(names[i] if plain and i < len(names) else f"argument {i}", value)
            for i, value in enumerate(values)
            if isinstance(value, Tensor)
        ]

    def library(self, target: _compilers.Target) -> ctypes.CDLL:
        return self._module._host

    def launch(
        self,
        target: _compilers.Target,
        values: Sequence[Any],
        addresses: Sequence[int],
        stream: int | None = None,
    ) -> int:
        session = self._session = Session(self.library("host"), self._also)
        places = iter(addresses)
        self._values = [value for value in values if isinstance(value, Tensor)]
        own: dict[int, Tensor] = {}
        passed = []
        for value in values:
            if isinstance(value, Tensor):
                place = next(places)
                passed.append(own.setdefault(id(value), session.add(value, place)))
            else:
                passed.append(value)
        self._copies = [value for value in passed if isinstance(value, Tensor)]
        try:
            own_lists = _nested(iter(passed), self._nesting)
            self._returned, status = session.call(self._function.number, own_lists)
        except TypeError as error:
            raise TypeError(f"{self.symbol}(): {error}") from None
        except Raised as error:
            raise RuntimeError(f"{self.symbol}(): {error}") from None
        return status

    def watch_also(self, memory: Callable[[Made], None]) -> None:
        self._also = memory

    def on_gpu(self, values: Sequence[Any]) -> list[Tensor | None]:
        returned = self._module._gpu_function(self.symbol)(*_nested(iter(values), self._nesting))
        return _tensors(returned)

    def returned(self) -> list[Tensor | None]:
        return _tensors(self._returned)

    def damaged(self) -> str | None:
        return self._session.damaged() if self._session else None

    def result(self) -> Any:
        return self._owned(self._returned)

    def _owned(self, returned: Any) -> Any:
        """A result without the call's memory: the argument for its copy, a view of the argument for
        a view of the copy, else a new tensor."""
        if isinstance(returned, (list, tuple)):
            return type(returned)(map(self._owned, returned))
        if not isinstance(returned, Tensor):
            return returned
        for copy, value in zip(self._copies, self._values):
            if returned is copy:
                return value
            if copy.numel() and copy.untyped_storage().data_ptr() == _storage_of(returned):
                offset = value.storage_offset() + returned.storage_offset()
                if returned.dtype == value.dtype:
                    return value.as_strided(returned.shape, returned.stride(), offset)
        return returned.clone()


def _doc(module: Any, name: str) -> str | None:
    return getattr(getattr(module, name, None), "__doc__", None)


def _storage_of(t: Tensor) -> int:
    return t.untyped_storage().data_ptr() if t.numel() else 0
