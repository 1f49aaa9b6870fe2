"""load and load_inline: users' kernels, from files or strings."""

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
    """Load functions from CUDA C++ sources, as torch.utils.cpp_extension.load does; also for CPU
    tensors.

    The module has the functions that PYBIND11_MODULE or TORCH_LIBRARY export. TORCH_LIBRARY's
    functions are also in torch.ops. Calls with CUDA tensors use the module that
    torch.utils.cpp_extension builds from the sources. Calls with CPU tensors use the same sources,
    rewritten for the host's compiler; ``__shared__`` and ``kernel<<<...>>>`` work there, too, and
    the tensors claim to be on the GPU.

    On the CPU a function works on copies of its tensors between canaries and pages without access
    rights, as in load_inline. If a name of torch, of CUDA's libraries or of PTX has no form on the
    CPU, the error names it.

    Args:
        name: the module's name, for the cache and for errors.
        sources: paths of .cu and .cpp files.
        extra_cflags, extra_cuda_cflags: flags for the C++ compiler and for nvcc. On the CPU only
            definitions (-D, -U) and folders (-I) are used.
        extra_include_paths: folders with headers.
        build_directory: the folder for torch's build; by default a folder in the cache for these
            sources, flags and GPUs.
        extra_ldflags, verbose, with_cuda, keep_intermediates: for torch's build, the only one that
            links libraries. They have no effect on the CPU.
        is_python_module: has no effect. The module is returned, and TORCH_LIBRARY's operators are
            registered, in both cases.
        is_standalone: must be False, because a program has no functions to call.
        with_sycl, extra_sycl_cflags: SYCL is not supported; with_sycl must not be True.
        sanitize: as in :func:`load_inline`.

    Raises:
        TypeError, ValueError: the arguments are not as described.
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
        _torch_builds.files,  # a module's function can be pickled for another process
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
    """The form with launchers, which take addresses."""


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
    """The form of torch.utils.cpp_extension."""


def load_inline(*arguments: Any, **named: Any) -> Any:
    """Load launchers from a string of CUDA C++, as functions of tensors and numbers.

    The source is compiled at the first call: by nvcc for CUDA tensors, by g++ for CPU tensors, so
    that a machine without nvcc can run it. ``kernel<<<...>>>`` and ``__shared__`` work on both, as
    do LAUNCH(kernel, grid, block, smem, stream, arguments...) and SHARED(T, name, dims) of
    csrc/crosscheck.cuh, which is included automatically. The library is kept in the cache.

    On the CPU a kernel works on copies of its tensors between canaries and pages without access
    rights. Written tensors are copied back if nothing went wrong. A kernel that writes outside its
    tensors, or crashes, raises RuntimeError: the call is repeated in another process, which finds
    kernel, block, thread, line, tensor and index. Addresses stored in tensors, as in tables of
    pointers, still refer to the original tensors, not to copies.

    The functions take their parameters by position, without the stream, which is torch's current
    one. For a pointer pass a contiguous tensor of its dtype (``const float*``: float32; ``void*``:
    any), or None for a null pointer; for a number pass a number in range. A tensor behind a pointer
    that is not const counts as written: every call increments its version, so that autograd notices
    if it has saved the tensor. Declare what is only read as const. Functions return None.

    Args:
        source: kernels and their launchers. A launcher returns cudaError_t, int (0 is success) or
            void (then cudaGetLastError is checked).
        functions: launcher → its parameters as in the source, for instance
            ``{"square": "const float* x, float* out, int n, cudaStream_t stream"}``. The compiler
            checks them: a declaration that does not match is a compile error. Around a launcher
            that takes no stream, a call waits for the device.
        name: the source's name in errors and in the cache; by default the first launcher's name.
        sanitize: run every call on CPU tensors in another process. "address", "thread" and
            "undefined" are the compiler's sanitizers. "watch" finds accesses outside of tensors and
            shared arrays, reads of shared memory before it was written, and races. A call takes
            seconds, and raises RuntimeError with its findings.

    Raises:
        TypeError, ValueError: the arguments are not as described, or a parameter cannot be parsed.

    The functions raise TypeError, ValueError or RuntimeError for unsuitable arguments, BuildError
    if the source does not compile, and RuntimeError with CUDA's message if a launch fails, or with
    the faults of a kernel on the CPU.

    Example:
        >>> module = load_inline(source, {"square": "const float* x, float* out, int n, "
        ...                                         "cudaStream_t stream"})
        >>> module.square(x, out, x.numel())

    The arguments may also be those of torch.utils.cpp_extension.load_inline: ``name``,
    ``cpp_sources``, ``cuda_sources``, ``functions`` (names, or names with docstrings) and those of
    :func:`load`. ``with_pytorch_error_handling``, ``use_pch`` and ``no_implicit_headers`` only
    affect torch's build. The functions then take and return tensors, and work like those of
    :func:`load`:

        >>> module = load_inline("square", "torch::Tensor square(torch::Tensor x);",
        ...                      cuda_source, functions=["square"])
    """
    if not _of_torch(arguments, named):
        return _inline.load_launchers(*arguments, **named)
    given = list(arguments)
    if len(given) == 4 and "functions" not in named:  # older versions of torch had no sycl_sources
        named["functions"] = given.pop()
    return _load_strings(*given, **named)


def _of_torch(arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether load_inline's arguments have torch's form: a module's name and sources, not a source
    and its launchers."""
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
    # As in torch, the functions are bound in the C++ sources, which declare them.
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
    """Arguments that differ from their defaults; older versions of torch may lack the others."""
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
    """Make the call that another process has described by OnHost.described()."""
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
