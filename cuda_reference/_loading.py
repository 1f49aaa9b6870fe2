"""load and load_inline: kernels of one's own, from files or strings."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from cuda_reference import _inline, _torch_builds
from cuda_reference._extension import Call, Extension
from cuda_reference._host_sources import Options
from cuda_reference._inline import InlineModule
from cuda_reference._on_host import OnHost
from cuda_reference._replay import KINDS

_PREAMBLE = "#include <torch/extension.h>\n"


def load(
    name: str,
    sources: str | Sequence[str],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
    *,
    sanitize: str | None = None,
) -> Extension:
    """Functions of CUDA C++ sources as torch.utils.cpp_extension.load takes them, on the CPU too.

    The functions that PYBIND11_MODULE or TORCH_LIBRARY export become those of the module, and
    TORCH_LIBRARY's are torch.ops, too. Called
    with CUDA tensors they are what torch.utils.cpp_extension builds of the sources. Called with CPU
    tensors they are the same sources, rewritten for the host's compiler: ``__shared__`` and
    ``kernel<<<...>>>`` stay as they are written. Tensors say there that they are on the GPU.

    On the CPU a function works on copies of its tensors between canaries and pages that nobody may
    touch, as load_inline's do. A name of torch, of CUDA's libraries or of PTX that has no form on
    the CPU is named in the error.

    Args:
        name: of the module; for the cache and for errors.
        sources: paths of .cu and .cpp files.
        extra_cflags, extra_cuda_cflags: for the compiler of C++ and for nvcc. On the CPU what
            they define (-D, -U) and the folders (-I) count.
        extra_include_paths: folders for headers.
        build_directory: where torch builds for the GPU; by default a folder in the cache for these
            very sources, flags and GPUs.
        extra_ldflags, verbose, with_cuda, keep_intermediates: for torch's build, which alone links
            libraries. They change nothing on the CPU.
        is_python_module: changes nothing. The module is returned and the operators of
            TORCH_LIBRARY are registered either way.
        is_standalone: must be False: a program has no functions to call.
        with_sycl, extra_sycl_cflags: there is no SYCL here; with_sycl must not be True.
        sanitize: as for :func:`load_inline`.

    Raises:
        TypeError, ValueError: the arguments are not as above.
        BuildError: the sources do not compile.

    Example:
        >>> module = load("relu", ["relu.cu"])
        >>> module.relu_f32(x, y)
    """
    _check("load", name, sanitize, with_sycl, is_standalone)
    files = [sources] if isinstance(sources, (str, Path)) else list(sources)
    paths = [Path(file).resolve() for file in files]
    for path in paths:
        if not path.is_file():
            raise ValueError(f"load(): there is no source {path}")
    if not paths:
        raise ValueError("load(): 'sources' is empty")
    options = Options(extra_include_paths, extra_cflags, extra_cuda_cflags, extra_ldflags)
    texts = {str(path): path.read_text(encoding="utf-8", errors="replace") for path in paths}
    on_gpu = functools.partial(
        _torch_builds.files,  # a module's function: another process can be sent it
        {
            "name": name,
            "sources": list(map(str, paths)),
            **options.of_torch(),
            "build_directory": build_directory,
            "verbose": verbose,
            **_unless_default(with_cuda=(with_cuda, None)),
        },
    )
    return Extension(name, texts, options, sanitize, on_gpu)


@overload
def load_inline(
    source: str,
    functions: Mapping[str, str],
    *,
    name: str | None = None,
    sanitize: str | None = None,
) -> InlineModule:
    """With launchers that take addresses."""


@overload
def load_inline(
    name: str,
    cpp_sources: str | Sequence[str] = (),
    cuda_sources: str | Sequence[str] | None = (),
    sycl_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = (),
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
    *,
    sanitize: str | None = None,
) -> Extension:
    """In the manner of torch.utils.cpp_extension."""


def load_inline(*arguments: Any, **named: Any) -> Any:
    """Launchers written in CUDA C++ in a string, as functions of tensors and numbers.

    The source is compiled on the first call: by nvcc for CUDA tensors, and for CPU tensors by g++,
    so that a machine without nvcc can load and try it. ``kernel<<<...>>>`` and ``__shared__`` work
    on both, as do LAUNCH(kernel, grid, block, smem, stream, arguments...) and SHARED(T, name, dims)
    of csrc/crosscheck.cuh, which is included by itself. The library is kept in the cache like any
    other.

    On the CPU a kernel works on copies of its tensors between canaries and pages that nobody may
    touch; what it wrote is copied back if all went well. One that writes beside its tensors, or
    crashes, raises RuntimeError: the call is repeated in a process of its own, which tells kernel,
    block, thread, line, tensor and index. Tensors that lead to others, as tables of addresses do,
    lead to these and not to copies.

    A function of the result takes its parameters by position, less the stream, which is torch's
    current one. A pointer takes a contiguous tensor of its dtype (``const float*`` float32,
    ``void*`` any, and so on) or None for a null pointer, a number a number in range. Tensors behind
    pointers that are not const are taken to be written: every call counts up their versions, so
    that autograd notices if it has saved one of them. What is only read is best declared const.
    Nothing is returned.

    Args:
        source: kernels and their launchers, functions that return cudaError_t, int (0 is success)
            or nothing (then cudaGetLastError is asked).
        functions: launcher → its parameters as in the source, for instance
            ``{"square": "const float* x, float* out, int n, cudaStream_t stream"}``. The compiler
            verifies them: a declaration that does not match is a compile error.
        name: what the source is called in errors and in the cache; else the first launcher's name.
        sanitize: run every call on CPU tensors in a process of its own, where "address", "thread"
            or "undefined" is that sanitizer of the compiler's, and "watch" looks for accesses
            outside of tensors and shared arrays, for shared memory that is read before it was
            written, and for races. Each call takes seconds, and what is found is its RuntimeError.

    Raises:
        TypeError, ValueError: the arguments are not as above, or a parameter cannot be understood.

    The functions raise TypeError, ValueError or RuntimeError for arguments that do not suit,
    BuildError if the source does not compile, RuntimeError with CUDA's words if a launch fails, or
    with what a kernel on the CPU did wrong.

    Example:
        >>> module = load_inline(source, {"square": "const float* x, float* out, int n, "
        ...                                         "cudaStream_t stream"})
        >>> module.square(x, out, x.numel())

    In the manner of torch.utils.cpp_extension.load_inline the arguments are ``name``,
    ``cpp_sources``, ``cuda_sources``, ``functions`` (names, or names with docstrings) and those of
    :func:`load`; ``with_pytorch_error_handling``, ``use_pch`` and ``no_implicit_headers`` are for
    torch's build alone. The functions then take and return tensors, and work as those of
    :func:`load`:

        >>> module = load_inline("square", "torch::Tensor square(torch::Tensor x);",
        ...                      cuda_source, functions=["square"])
    """
    if not _of_torch(arguments, named):
        return _inline.load_launchers(*arguments, **named)
    given = list(arguments)
    if len(given) == 4 and "functions" not in named:  # torch had no SYCL once
        named["functions"] = given.pop()
    return _load_strings(*given, **named)


def _of_torch(arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether load_inline's arguments are a module's name and sources, not a source and its
    launchers."""
    if len(arguments) > 2 or {"cpp_sources", "cuda_sources"} & {*named}:
        return True
    if len(arguments) < 2 or not isinstance(arguments[1], (str, list, tuple)):
        return False
    return "functions" in named or "\n" not in str(arguments[0])


def _load_strings(
    name: str,
    cpp_sources: str | Sequence[str] = (),
    cuda_sources: str | Sequence[str] | None = (),
    sycl_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = (),
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    build_directory: str | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
    *,
    sanitize: str | None = None,
) -> Extension:
    _check("load_inline", name, sanitize, with_sycl or bool(sycl_sources))
    cpp, cuda = (
        [texts] if isinstance(texts, str) else list(texts or ())
        for texts in (cpp_sources, cuda_sources)
    )
    if not all(isinstance(text, str) for text in (*cpp, *cuda)):
        raise TypeError("load_inline(): 'cpp_sources' and 'cuda_sources' must be strings")
    cpp, cuda = ([text for text in texts if text.strip()] for texts in (cpp, cuda))
    if not (cpp or cuda):
        raise TypeError("load_inline(): 'cpp_sources' and 'cuda_sources' are both empty")
    names = [functions] if isinstance(functions, str) else list(functions or ())
    docs = functions if isinstance(functions, Mapping) else {}
    bound = [
        f"  m.def({_quoted(each)}, &{each}, {_quoted(docs.get(each, each))});\n" for each in names
    ]
    module = f"\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{''.join(bound)}}}\n"
    joined = {f"{name}.cu": "\n".join(cuda), f"{name}.cpp": "\n".join(cpp)}
    # As torch does it, the functions are bound where the C++ sources declare them.
    texts = {file: text for file, text in joined.items() if text}
    if names:
        last = f"{name}.cpp" if cpp else f"{name}.cu"
        texts[last] += module
    options = Options(extra_include_paths, extra_cflags, extra_cuda_cflags, extra_ldflags)
    # Without C++ sources the functions are bound in the .cu, which needs the binding's header.
    cuda_text = "\n".join(cuda) if cpp or not names else _PREAMBLE + "\n".join(cuda) + module
    on_gpu = functools.partial(
        _torch_builds.strings,
        {
            "name": name,
            "cpp_sources": cpp,
            "cuda_sources": [cuda_text] if cuda else None,
            "functions": (dict(docs) or names) if cpp else None,
            **options.of_torch(),
            "build_directory": build_directory,
            "verbose": verbose,
            **_unless_default(
                with_cuda=(with_cuda, None),
                with_pytorch_error_handling=(with_pytorch_error_handling, True),
                use_pch=(use_pch, False),
                no_implicit_headers=(no_implicit_headers, False),
            ),
        },
    )
    return Extension(name, texts, options, sanitize, on_gpu)


def _unless_default(**given: tuple[Any, Any]) -> dict[str, Any]:
    """Arguments that older versions of torch may not have, if they are not as by default."""
    return {name: value for name, (value, default) in given.items() if value != default}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _check(
    function: str,
    name: Any,
    sanitize: str | None,
    with_sycl: bool | None,
    is_standalone: bool = False,
) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(f"{function}(): {name!r} is no name for a module")
    if with_sycl:
        raise ValueError(
            f"{function}(): SYCL sources run neither on a CUDA GPU nor here on the CPU; leave "
            "them out, with_sycl, too"
        )
    if is_standalone:
        raise ValueError(
            f"{function}(): is_standalone=True makes a program, and this loads functions; build "
            "programs with torch.utils.cpp_extension"
        )
    if sanitize is not None and sanitize not in KINDS:
        raise ValueError(
            f"{function}(): 'sanitize' must be one of {', '.join(KINDS)}, got {sanitize!r}"
        )


def again(described: dict[str, Any]) -> OnHost:
    """What another process described: see OnHost.described()."""
    if described["form"] == "launcher":
        launchers = _inline.load_launchers(
            described["source"], described["functions"], name=described["name"]
        )
        launcher: OnHost = getattr(launchers, described["symbol"])
        return launcher
    options = Options(None, None, None, None)
    vars(options).update(described["options"])
    module = Extension(
        described["name"], described["sources"], options, None, described["on_gpu"], listed=False
    )
    call = Call(module, described["symbol"])
    call.again(described["nesting"])
    return call
