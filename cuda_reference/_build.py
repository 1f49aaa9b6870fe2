"""Turns csrc/<stem>.cu into a shared library, for a GPU (nvcc) or for the CPU (g++ or clang++).

Nothing happens at import. A library is built on first use by ninja, kept in a cache directory
under a name that hashes everything it depends on, and loaded once per process; or it was built
ahead of time, see :mod:`cuda_reference._shipped`.

Environment variables, all read when a library is first asked for:

``CUDA_REFERENCE_CACHE``
    where libraries are kept; else triton-kernels-crosscheck in ``$XDG_CACHE_HOME`` or ``~/.cache``
``CUDA_REFERENCE_LIBRARIES``
    a folder of libraries built ahead of time: they are used, and csrc is not compiled
``TORCH_CUDA_ARCH_LIST``
    GPU architectures to build for, as in torch ("8.0;9.0a+PTX"); else those of the devices present
``CUDA_HOME``, ``CUDA_PATH``, ``CXX``
    the CUDA toolkit and the C++ compiler of the host target
``CROSSCHECK_SANITIZE``
    ``address``, ``thread`` or ``undefined``: sanitized host libraries, which need a process
    started with :func:`sanitizer_environment`
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from cuda_reference import _compilers, _shipped
from cuda_reference._compilers import CSRC, BuildError, Target


def unavailable(target: Target) -> str | None:
    """None if ``target`` can be had and run here, else one sentence on why, with the remedy."""
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


def build(stems: Sequence[str], target: Target, *, csrc: Path = CSRC) -> dict[str, Path]:
    """Builds what is neither prebuilt nor in the cache, in one parallel ninja run; stem → library.

    Raises BuildError with the compiler's first errors if a source does not compile, or if a
    library in CUDA_REFERENCE_LIBRARIES does not fit.
    """
    csrc = Path(csrc).resolve()
    sources = {stem: csrc / f"{stem}.cu" for stem in stems}
    for source in sources.values():
        if not source.is_file():
            raise BuildError(f"there is no source {source}")
    ready, misfits = _shipped.libraries(stems, target) if csrc == CSRC else ({}, [])
    left = {stem: source for stem, source in sources.items() if stem not in ready}
    try:
        return ready | (
            compile_sources(left, target, _compilers._toolchain(target)) if left else {}
        )
    except BuildError as error:
        raise BuildError("\n".join([str(error), *misfits])) from error
    return ready


def compile_sources(
    sources: Mapping[str, Path], target: Target, toolchain: _compilers._Toolchain
) -> dict[str, Path]:
    """Stem → library in the cache, by one parallel ninja run for those that are not there yet."""
    cache = _compilers.cache_directory()
    libraries = {
        stem: cache / f"{stem}-{target}-{_key(source, toolchain)}.so"
        for stem, source in sources.items()
    }
    missing = [stem for stem in sources if not libraries[stem].exists()]
    if missing:
        # Each process builds in a folder of its own and renames: no lock that could go stale.
        with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as folder:
            work = Path(folder)
            _run_ninja(work, {stem: sources[stem] for stem in missing}, toolchain)
            failures = []
            for stem in missing:
                built, log = work / f"{stem}.so", work / f"{stem}.log"
                if built.exists():
                    os.replace(built, libraries[stem])
                    continue
                kept = libraries[stem].with_suffix(".log")
                os.replace(log, kept)
                failures.append(_describe_failure(sources[stem], target, kept))
            if failures:
                raise BuildError("\n".join(failures))
    return libraries


def cubin(stem: str, arch: str, *, csrc: Path = CSRC) -> tuple[bytes, str]:
    """The kernels of csrc/<stem>.cu as machine code for ``arch`` ("sm_90"), and ptxas's account.

    Needs nvcc but no GPU; cached as libraries are. Raises BuildError as build() does.
    """
    source = Path(csrc).resolve() / f"{stem}.cu"
    flags = (*_compilers._CUDA_FLAGS, f"-arch={arch}", "-cubin", "-Xptxas", "-v")
    toolchain = _compilers._Toolchain((str(_compilers._nvcc()),), flags, _compilers._cuda_headers())
    cached = _compilers.cache_directory() / f"{stem}-{arch}-{_key(source, toolchain)}.cubin"
    account = cached.with_suffix(".ptxas")
    if not cached.exists():
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix="build-") as folder:
            built, log = Path(folder) / "out.cubin", Path(folder) / "log"
            command = toolchain.command(source, built, Path(folder))
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            log.write_text(ran.stdout + ran.stderr)
            os.replace(log, account)
            if ran.returncode:
                raise BuildError(_describe_failure(source, "cuda", account))
            os.replace(built, cached)  # last: where it lies, the account does
    return cached.read_bytes(), account.read_text()


def _run_ninja(work: Path, sources: dict[str, Path], toolchain: _compilers._Toolchain) -> None:
    """Compiles each source to work/<stem>.so, with the compiler's words in work/<stem>.log."""
    exports = work / "exports.map"
    exports.write_text(_compilers._EXPORTS)
    lines = ["rule compile", "  command = $line > $log 2>&1"]
    for stem, source in sources.items():
        log = work / f"{stem}.log"
        log.touch()
        command = shlex.join(toolchain.command(source, work / f"{stem}.so", exports))
        lines += [
            f"build {stem}.so: compile",
            f"  line = {command.replace('$', '$$')}",
            f"  log = {shlex.quote(str(log)).replace('$', '$$')}",
        ]
    (work / "build.ninja").write_text("\n".join(lines) + "\n")
    # A preloaded sanitizer is for this process, not for the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command_line = [_compilers._ninja(), "-C", str(work), "--quiet", "-k", "0"]
    ran = subprocess.run(command_line, env=environment, capture_output=True, text=True, check=False)
    logs = [work / f"{stem}.log" for stem in sources]
    if ran.returncode and not any(log.stat().st_size for log in logs):
        for log in logs:  # ninja itself, or the shell, failed before the compiler spoke
            log.write_text(ran.stdout + ran.stderr)


def _describe_failure(source: Path, target: Target, log: Path) -> str:
    """The first errors of a compiler's log, each with the line of code it complains about."""
    # "x.cu:12:5: error: ..." (g++, clang++) or "x.cu(12): error: ..." (nvcc)
    pattern = re.compile(r"(.+?)[:(](\d+)(?:\)|:\d+)?: (?:fatal )?error:? ?(.*)")
    output = log.read_text(errors="replace").splitlines()
    described = []
    for match in filter(None, map(pattern.match, output)):
        file, number, message = Path(match[1]), int(match[2]), match[3]
        described.append(f"  {file.name}:{number}: error: {message}")
        try:
            code = file.read_text(errors="replace").splitlines()[number - 1]
        except (OSError, IndexError):
            continue
        described.append(f"    {number} | {code.strip()}")
    heading = f"could not build {source.name} for the {target} target:"
    if target == "host" and any("<<<" in line for line in described):
        described = [
            "  kernel<<<...>>> is nvcc's alone; for both targets write "
            "LAUNCH(kernel, grid, block, smem, stream, arguments...)",
            *described,
        ]
    described = list(dict.fromkeys(described))
    if not described:  # the linker, or the compiler's driver
        described = [f"  {line}" for line in output[-10:]]
    return "\n".join([heading, *described[:6], f"  full log: {log}"])


# ---- Loading ----------------------------------------------------------------


_load_lock = threading.RLock()
# A fork waits for the build or the load that another thread is in. In the child that thread would
# hold the lock for ever, and the folder of its build is not the child's to finish or sweep.
os.register_at_fork(
    before=_load_lock.acquire,
    after_in_parent=_load_lock.release,
    after_in_child=_load_lock.release,
)


def library(stem: str, target: Target, *, csrc: Path = CSRC) -> ctypes.CDLL:
    """The library of csrc/<stem>.cu for ``target``, built on first use, loaded once a process."""
    with _load_lock:
        return _load(stem, target, csrc)


@functools.cache
def _load(stem: str, target: Target, csrc: Path) -> ctypes.CDLL:
    path = build([stem], target, csrc=csrc)[stem]
    kind = _compilers._sanitizer() if target == "host" else None
    symbol = {"address": "__asan_init", "thread": "__tsan_init"}.get(kind or "")
    # Loading it all the same would end the process.
    if symbol and not hasattr(ctypes.CDLL(None), symbol):
        raise BuildError(
            f"CROSSCHECK_SANITIZE={kind} needs the sanitizer's runtime in the process from its "
            f"start: run python with the variables of sanitizer_environment({kind!r})"
        )
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"cannot load {path} ({error}): build it on this machine, or on one with no newer "
            "system libraries"
        ) from error
    loaded.crosscheck_error_string.argtypes = [ctypes.c_int]
    loaded.crosscheck_error_string.restype = ctypes.c_char_p
    return loaded
