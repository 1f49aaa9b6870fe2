"""Turns csrc/<stem>.cu into a shared library, for a GPU (nvcc) or for the CPU (g++ or clang++).

Nothing happens at import. A library is built by ninja on first use, kept in a cache directory under
a name with a hash of everything that it depends on, and loaded once per process. Libraries may also
be built ahead of time; see :mod:`cuda_reference._shipped`.

Environment variables, all read when a library is first needed:

``CUDA_REFERENCE_CACHE``
    the cache; by default triton-kernels-crosscheck in ``$XDG_CACHE_HOME`` or ``~/.cache``. Only the
    user and root may have write access. It may be read-only if it has all needed libraries
``CUDA_REFERENCE_LIBRARIES``
    a folder of libraries built ahead of time; they are used, and csrc is not compiled
``TORCH_CUDA_ARCH_LIST``
    GPU architectures to build for, as in torch ("8.0;9.0a+PTX"); else those of the devices present
``CUDA_HOME``, ``CUDA_PATH``, ``CXX``
    the CUDA toolkit and the C++ compiler of the host target
``CROSSCHECK_SANITIZE``
    ``address``, ``thread`` or ``undefined``: sanitized host libraries, which need a process
    started with :func:`sanitizer_environment`
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuda_reference import _compilers, _shipped, _storage
from cuda_reference._compilers import CSRC, BuildError, Target


def unavailable(target: Target) -> str | None:
    """Why ``target`` cannot be built or run here, in one sentence with the remedy; None if it
    can."""
    try:
        if target == "cuda":
            import torch

            if not torch.cuda.is_available():
                return "no CUDA device: torch.cuda.is_available() is False"
        if not _shipped.serves(target):
            _compilers._toolchain(target)
            _compilers._ninja()
    except BuildError as error:
        return str(error)
    return None


# ---- The cache --------------------------------------------------------------


def _key(source: Path, toolchain: _compilers._Toolchain) -> str:
    return _compilers.hash_sources(source, toolchain.identity(), _compilers._EXPORTS)


# ---- Building ---------------------------------------------------------------

PLAIN = "ONLY_PLAIN"  # the part of a source that has its plain kernels; csrc/elementwise.cuh


def rungs_of(dtype: int) -> str:
    """The part of a source that has the rungs of a dtype, given by its code."""
    return f"ONLY_RUNGS_OF={dtype}"


def build(
    stems: Sequence[str],
    target: Target,
    *,
    csrc: Path = CSRC,
    more: tuple[str, ...] = (),
    part: str | None = None,
) -> dict[str, Path]:
    """Stem → library. Those that are neither prebuilt nor in the cache are built in one parallel
    ninja run.

    Args:
        stems: names of the sources in ``csrc``.
        target: "cuda" or "host".
        csrc: the folder of the sources.
        more: additional flags, or additional sources of the library.
        part: all that nvcc shall compile, PLAIN or rungs_of(dtype); the whole source if that is in
            the cache, and on the CPU, where it takes seconds. None: the whole source.

    Raises:
        BuildError: a source does not compile, with the compiler's first errors; or a library in
            CUDA_REFERENCE_LIBRARIES does not fit.
    """
    csrc = Path(csrc).resolve()
    sources = {stem: csrc / f"{stem}.cu" for stem in stems}
    for source in sources.values():
        if not source.is_file():
            raise BuildError(f"there is no source {source}")
    ready, misfits = _shipped.libraries(stems, target) if csrc == CSRC else ({}, [])
    left = {stem: source for stem, source in sources.items() if stem not in ready}
    try:
        if not left:
            return ready
        toolchain = _compilers._toolchain(target)
        toolchain = replace(toolchain, flags=(*toolchain.flags, *more))
        if part and target == "cuda" and not _all_cached(left, target, toolchain):
            toolchain = replace(toolchain, flags=(*toolchain.flags, f"-D{part}"))
        return ready | compile_sources(left, target, toolchain)
    except BuildError as error:
        raise BuildError("\n".join([str(error), *misfits])) from error


def compile_sources(
    sources: Mapping[str, Path], target: Target, toolchain: _compilers._Toolchain
) -> dict[str, Path]:
    """Stem → library in the cache. Missing ones are built in one parallel ninja run."""
    cache = _compilers.cache_directory()
    records = _records(sources, target, toolchain)
    libraries = {stem: cached[0] for stem, record in records.items() if (cached := _cached(record))}
    missing = {stem: source for stem, source in sources.items() if stem not in libraries}
    if missing:
        with workspace(cache) as work:
            said = _run_ninja(work, missing, toolchain)
            failures = []
            for stem, source in missing.items():
                built, record = work / f"{stem}.so", records[stem]
                if built.exists():
                    libraries[stem] = _storage.keep(built, record, f"{stem}-{target}", work)
                else:
                    log = record.with_suffix(".log")
                    failures.append(_describe_failure(source, target, said[stem], log, work))
            if failures:
                raise BuildError("\n".join(failures))
    return libraries


def _records(
    sources: Mapping[str, Path], target: Target, toolchain: _compilers._Toolchain
) -> dict[str, Path]:
    """Stem → the record of its library in the cache, if there is one."""
    cache = _compilers.cache_directory()
    return {
        stem: cache / f"{stem}-{target}-{_key(source, toolchain)}.json"
        for stem, source in sources.items()
    }


def _all_cached(
    sources: Mapping[str, Path], target: Target, toolchain: _compilers._Toolchain
) -> bool:
    return all(map(_cached, _records(sources, target, toolchain).values()))


def cubin(
    stem: str,
    arch: str,
    *,
    csrc: Path = CSRC,
    flags: tuple[str, ...] = _compilers._CUDA_FLAGS,
) -> tuple[bytes, str]:
    """The cubin of csrc/<stem>.cu for ``arch`` ("sm_90"), and the report of ptxas -v.

    It needs nvcc but no GPU, and is cached like a library.

    Raises:
        BuildError: there is no nvcc, or the source does not compile.
    """
    source = Path(csrc).resolve() / f"{stem}.cu"
    flags = (*flags, f"-arch={arch}", "-cubin", "-Xptxas", "-v")
    toolchain = _compilers._Toolchain((str(_compilers._nvcc()),), flags, _compilers._cuda_headers())
    cache = _compilers.cache_directory()
    record = cache / f"{stem}-{arch}-{_key(source, toolchain)}.json"
    cached = _cached(record)
    if cached:
        return cached[0].read_bytes(), cached[1]["account"]
    with workspace(cache) as work:
        built = work / f"{stem}.cubin"
        ran = subprocess.run(
            toolchain.command(source, built, work),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        account = os.fsdecode(ran.stdout)
        if ran.returncode:
            log = record.with_suffix(".log")
            raise BuildError(_describe_failure(source, "cuda", account, log, work))
        _storage.keep(built, record, f"{stem}-{arch}", work, account=account)
        return built.read_bytes(), account


@contextlib.contextmanager
def workspace(cache: Path) -> Iterator[Path]:
    """A temporary folder in the cache to build in. Raises BuildError if the cache cannot be
    written."""
    try:
        with _storage.workspace(cache) as work:
            yield work
    except OSError as error:
        raise BuildError(
            f"the library cache {cache} does not hold what is needed, and nothing can be added "
            f"({error}): set CUDA_REFERENCE_CACHE to a folder that can be written and has room"
        ) from error


def _cached(record: Path) -> tuple[Path, dict[str, Any]] | None:
    """The file that a record in the cache names, and the record; None if it must be built."""
    try:
        library, about = _storage.find(record)
        # Other users may have written it when they still had access to the folder.
        if any(map(_compilers.open_to_others, (record, library))):
            return None
    except (OSError, ValueError):
        return None
    return library, about


def _run_ninja(
    work: Path, sources: Mapping[str, Path], toolchain: _compilers._Toolchain
) -> dict[str, str]:
    """Compile each source to work/<stem>.so. Returns stem → the compiler's output, or else ninja's.

    The output is read from a pipe, because a file could not be written on a full disk.
    """
    (work / "exports.map").write_text(_compilers._EXPORTS)
    # The output is renamed at the end, so that the rest of a killed compiler's work is no library.
    lines = ["rule compile", "  command = echo '>>> $stem' && $line && mv $stem.new $out"]
    for stem, source in sources.items():
        command = shlex.join(toolchain.command(source, Path(f"{stem}.new"), Path("exports.map")))
        lines += [
            f"build {stem}.so: compile",
            f"  line = {command.replace('$', '$$')}",
            f"  stem = {stem}",
        ]
    (work / "build.ninja").write_bytes(os.fsencode("\n".join(lines) + "\n"))
    # The compiler must not load a sanitizer that is preloaded for this process.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment["TMPDIR"] = "."  # inside work, because a killed compiler leaves temporary files
    ran = subprocess.run(
        [_compilers._ninja(), "-C", str(work), "--quiet", "-k", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = os.fsdecode(ran.stdout)
    parts = re.findall(r"^>>> (\S+)\n(.*?)(?=^(?:>>>|FAILED:|ninja:) |\Z)", output, re.M | re.S)
    said = {stem: text for stem, text in parts if text.strip()}
    return {stem: said.get(stem, output) for stem in sources}


def _describe_failure(source: Path, target: Target, said: str, log: Path, work: Path) -> str:
    """The text of a failed build: the compiler's first errors, each with its line of code."""
    # "x.cu:12:5: error: ..." (g++, clang++) or "x.cu(12): error: ..." (nvcc)
    pattern = re.compile(r"(.+?)[:(](\d+)(?:\)|:\d+)?: (?:fatal )?error:? ?(.*)")
    output = said.splitlines()
    described = []
    for match in filter(None, map(pattern.match, output)):
        file, number, message = Path(match[1]), int(match[2]), match[3]
        described.append(f"  {file.name}:{number}: error: {message}")
        try:
            code = file.read_text(encoding="utf-8", errors="replace").splitlines()[number - 1]
        except (OSError, IndexError):
            continue
        described.append(f"    {number} | {code.strip()}")
    heading = f"could not build {source.name} for the {target} target:"
    if target == "host" and source.parent == CSRC and any("<<<" in line for line in described):
        described = [
            "  kernel<<<...>>> is nvcc's alone; for both targets write "
            "LAUNCH(kernel, grid, block, smem, stream, arguments...)",
            *described,
        ]
    hint = _not_on_the_host(said) if target == "host" else _not_in_the_toolkit(said)
    if hint:
        described = [f"  {hint}", *described]
    described = list(dict.fromkeys(described))
    if not described:  # the linker, or the compiler's driver
        described = [f"  {line}" for line in output[-6:]]
    try:
        _storage.write({log: os.fsencode(said)}, work)
        kept = f"  full log: {log}"
    except OSError as error:
        kept = f"  the full log could not be kept: {error}"
    return "\n".join([heading, *described[:6], kept])


# Errors of g++ and clang++ about names that the host target's headers lack → the missing name.
_LACKING = (
    (r"class (?:at|torch)::Tensor['’] has no member named ['‘](\w+)", "torch::Tensor::{}"),
    (r"no member named ['‘](\w+)['’] in ['‘]at::Tensor", "torch::Tensor::{}"),
    (r"['‘](\w+)['’] is not a member of ['‘](?:torch|at)['’]", "torch::{}"),
    (r"no member named ['‘](\w+)['’] in namespace ['‘](?:torch|at)['’]", "torch::{}"),
    (r"['‘](\w+)['’] is not a member of ['‘](?:c10|pybind11|py)['’]", "{} of c10 or pybind11"),
    (r"['‘]((?:torch|at|c10)::\w+)['’] has not been declared", "{}"),
    (r"['‘]((?:AT|TORCH|C10)_\w+)['’] was not declared in this scope", "{}"),
    (
        r"['‘](\w+)['’] is not a member of ['‘](?:cooperative_groups|cg)['’]",
        "cooperative_groups::{}",
    ),
    (
        r"['‘](cu(?:blas|dnn|fft|rand|solver|sparse)\w+)['’] "
        r"(?:does not name a type|was not declared|has not been declared)",
        "{}",
    ),
    (
        r"(?:unknown type name|undeclared identifier) '(cu(?:blas|dnn|fft|rand|solver|sparse)\w+)'",
        "{}",
    ),
)


def _not_on_the_host(said: str) -> str | None:
    """A sentence that names a function which the source uses and the host target lacks; None if
    that is not the error."""
    for pattern, name in _LACKING:
        if match := re.search(pattern, said):
            return (
                f"{name.format(match[1])} has no form on the CPU; call the function with CUDA "
                "tensors, or do without it"
            )
    return None


def _not_in_the_toolkit(said: str) -> str | None:
    """A sentence about a header of CUDA's libraries that nvcc does not find; None if that is not
    the error."""
    match = re.search(
        r"\b((?:cublas|cusparse|cusolver|cufft|curand|cudnn|nvrtc|nvToolsExt)\w*\.h): No such", said
    )
    if match is None:
        return None
    return (
        f"{match[1]} belongs to CUDA's libraries, which the toolkit here lacks; torch's headers "
        "for CUDA include those of cuBLAS, cuSPARSE and cuSOLVER. Set CUDA_HOME to a whole "
        "toolkit, or pass the folder of the header in extra_include_paths"
    )


# ---- Loading ----------------------------------------------------------------


_load_lock = threading.RLock()
# A fork waits until other threads have ended their builds and loads. In the child such a thread
# would never release the lock, and the child must neither finish nor remove its build folder.
os.register_at_fork(
    before=_load_lock.acquire,
    after_in_parent=_load_lock.release,
    after_in_child=_load_lock.release,
)


def library(
    stem: str,
    target: Target,
    *,
    csrc: Path = CSRC,
    more: tuple[str, ...] = (),
    part: str | None = None,
) -> ctypes.CDLL:
    """The library of csrc/<stem>.cu for ``target``, or of the part (:func:`build`), built on first
    use, loaded once per process."""
    with _load_lock:
        return _load(stem, target, csrc, more, part if target == "cuda" else None)


def _demangled(symbol: str) -> str:
    """The demangled C++ name of a symbol."""
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_char_p
    name: bytes | None = demangle(symbol.encode(), None, None, ctypes.byref(ctypes.c_int()))
    return name.decode() if name else symbol


def undefined(library: ctypes.CDLL) -> list[str]:
    """The functions that a library calls and nobody defines. Their addresses are 0."""
    command = ["nm", "--dynamic", "--demangle", "--undefined-only", library._name]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    weak = (line.strip().partition("w ")[2] for line in said.splitlines())
    return sorted(name for name in weak if name and not name.startswith("_"))


@functools.cache
def _load(
    stem: str, target: Target, csrc: Path, more: tuple[str, ...], part: str | None
) -> ctypes.CDLL:
    path = build([stem], target, csrc=csrc, more=more, part=part)[stem]
    kind = _compilers._sanitizer() if target == "host" else None
    symbol = {"address": "__asan_init", "thread": "__tsan_init"}.get(kind or "")
    # Without the runtime, loading the library would end the process.
    if symbol and not hasattr(ctypes.CDLL(None), symbol):
        raise BuildError(
            f"CROSSCHECK_SANITIZE={kind} needs the sanitizer's runtime in the process from its "
            f"start: run python with the variables of sanitizer_environment({kind!r})"
        )
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        if missing := re.search(r"undefined symbol: (\w+)", str(error)):
            raise BuildError(
                f"{path} needs {_demangled(missing[1])}, which none of its sources defines, "
                f"nor the {target} target"
            ) from error
        raise BuildError(
            f"cannot load {path} ({error}): build it on this machine, or on one with no newer "
            "system libraries"
        ) from error
    loaded.crosscheck_error_string.argtypes = [ctypes.c_int]
    loaded.crosscheck_error_string.restype = ctypes.c_char_p
    return loaded
