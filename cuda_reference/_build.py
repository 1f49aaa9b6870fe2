"""Turns csrc/<stem>.cu into a shared library, for a GPU (nvcc) or for the CPU (g++ or clang++).

Nothing happens at import. A library is built on first use by ninja, kept in a cache directory
under a name that hashes everything it depends on, and loaded once per process.

Environment variables, all read when a library is first asked for:

``CUDA_REFERENCE_CACHE``
    where libraries are kept; else triton-kernels-crosscheck in ``$XDG_CACHE_HOME`` or ``~/.cache``
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
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Target = Literal["cuda", "host"]

CSRC = Path(__file__).resolve().parent / "csrc"

_HOST_FLAGS = (
    *("-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared", "-pthread"),
    # glibc's fortified longjmp takes a switch between fibers for stack corruption.
    "-U_FORTIFY_SOURCE",
    # Statics of templates, shared arrays among them, would be unified across libraries
    # (STB_GNU_UNIQUE).
    "-Wl,--version-script={exports}",
    *("-Wall", "-Wextra", "-Wno-unknown-pragmas"),
)
_SANITIZER_FLAGS = {
    "address": ("-fsanitize=address,alignment", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize-recover=all"),
}
# Fused multiply-adds are written as such in the sources: nvcc must not make others.
_CUDA_FLAGS = (
    *("-std=c++17", "-O3", "-fmad=false", "-lineinfo"),
    *("-shared", "-cudart", "static", "-Xcompiler", "-fPIC"),
)
# Launchers are extern "C" and plain names; what begins with an underscore is C++ or the compiler's.
_EXPORTS = "{ global: *; local: _*; };\n"


class BuildError(RuntimeError):
    """A library cannot be built or loaded; the message says why and what to do."""


@dataclass(frozen=True)
class _Toolchain:
    """A compiler with its flags: what, beside the sources, decides the contents of a library."""

    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    headers: Path

    def command(self, source: Path, output: Path, exports: Path) -> list[str]:
        flags = [flag.replace("{exports}", str(exports)) for flag in self.flags]
        includes = ["-I", str(source.parent), "-I", str(CSRC)]
        return [*self.compiler, *flags, *includes, "-o", str(output), str(source)]

    def identity(self) -> str:
        """Compiler and CUDA headers by path, size and time, since running the compiler costs."""
        programs = filter(None, map(shutil.which, self.compiler))
        files = [*(Path(program).resolve() for program in programs)]
        files.append(self.headers / "cuda_runtime_api.h")
        stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return repr((self.compiler, self.flags, stats))


# ---- Finding compilers and headers ------------------------------------------


def _host_compiler() -> tuple[str, ...]:
    """The C++ compiler as a command: CXX may be "ccache g++" or carry flags."""
    chosen = os.environ.get("CXX")
    if chosen:
        name, *others = shlex.split(chosen)
        found = shutil.which(name)
        if not found:
            raise BuildError(
                f"no C++ compiler found: CXX is {chosen!r}; unset it, or name an installed compiler"
            )
        return (found, *others)
    for name in ("g++", "clang++"):
        if found := shutil.which(name):
            return (found,)
    raise BuildError("no C++ compiler found: install g++ (or clang++, or set CXX)")


def _package_folders(package: str) -> list[Path]:
    """Where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def _pip_toolkits() -> list[Path]:
    """The CUDA folders of NVIDIA's pip packages, newest first."""
    toolkits = [folder for root in _package_folders("nvidia") for folder in root.glob("cu[0-9]*")]
    return sorted(toolkits, key=lambda folder: int(re.sub(r"\D", "", folder.name)), reverse=True)


def _toolkits() -> Iterator[Path]:
    """Folders that may hold a CUDA toolkit, in order of preference."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            yield Path(value)
    if nvcc := shutil.which("nvcc"):
        yield Path(nvcc).resolve().parent.parent
    yield Path("/usr/local/cuda")
    yield from _pip_toolkits()


def _nvcc() -> Path:
    for toolkit in _toolkits():
        nvcc = toolkit / "bin" / "nvcc"
        if os.access(nvcc, os.X_OK):
            return nvcc
    # A wrapper on PATH may lie outside a toolkit.
    if found := shutil.which("nvcc"):
        return Path(found)
    raise BuildError(
        "nvcc not found: pip install 'triton-kernels-crosscheck[nvcc]', or install the CUDA "
        "toolkit and set CUDA_HOME to its folder"
    )


def _cuda_headers() -> Path:
    """Where cuda_runtime_api.h and cuda_fp16.h lie: in a toolkit, or in the Triton wheel."""
    candidates = [toolkit / "include" for toolkit in _toolkits()]
    candidates += [folder / "backends/nvidia/include" for folder in _package_folders("triton")]
    for folder in candidates:
        if all((folder / name).exists() for name in ("cuda_runtime_api.h", "cuda_fp16.h")):
            return folder
    raise BuildError(
        "CUDA's headers not found: pip install triton (its wheel has them), or set CUDA_HOME"
    )


def _ninja() -> str:
    try:
        import ninja
    except ImportError:
        pass
    else:
        return str(Path(ninja.BIN_DIR) / "ninja")
    if found := shutil.which("ninja"):
        return found
    raise BuildError("ninja not found: pip install ninja")


def _architectures() -> list[str]:
    """Flags for TORCH_CUDA_ARCH_LIST or, without it, for every device present."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    if not listed:
        import torch

        if not torch.cuda.is_available():
            raise BuildError(
                "no CUDA device: build on a machine with one, or set TORCH_CUDA_ARCH_LIST"
            )
        devices = range(torch.cuda.device_count())
        capabilities = sorted({torch.cuda.get_device_capability(device) for device in devices})
        listed = [f"{major}.{minor}" for major, minor in capabilities]
    flags = []
    for name in listed:
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", name)
        if not match:
            raise BuildError(f"TORCH_CUDA_ARCH_LIST has {name!r}; write for example '8.0;9.0a+PTX'")
        number = "".join(match.group(1, 2, 3))
        flags += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
        if match.group(4):
            flags += ["-gencode", f"arch=compute_{number},code=compute_{number}"]
    return flags


def _sanitizer() -> str | None:
    kind = os.environ.get("CROSSCHECK_SANITIZE") or None
    if kind is not None and kind not in _SANITIZER_FLAGS:
        raise BuildError(
            f"CROSSCHECK_SANITIZE is {kind!r}; it can be {', '.join(_SANITIZER_FLAGS)}"
        )
    return kind


def _toolchain(target: Target) -> _Toolchain:
    if target == "cuda":
        nvcc = _nvcc()
        # Of pip's toolkit nvcc does not know the library folder.
        flags = [*_CUDA_FLAGS, *_architectures(), f"-L{nvcc.parent.parent / 'lib'}"]
        return _Toolchain((str(nvcc),), tuple(flags), _cuda_headers())
    if target != "host":
        raise ValueError(f"target must be 'cuda' or 'host', got {target!r}")
    compiler, headers = _host_compiler(), _cuda_headers()
    kind = _sanitizer()
    optimise = (
        ("-O1", "-g", "-fno-omit-frame-pointer", *_SANITIZER_FLAGS[kind]) if kind else ("-O2",)
    )
    # csrc/host has a stand-in for <nv/target>, which Triton's headers lack: searched last.
    includes = ["-isystem", str(headers), "-idirafter", str(CSRC / "host")]
    return _Toolchain(compiler, (*_HOST_FLAGS, *optimise, *includes, "-x", "c++"), headers)


def unavailable(target: Target) -> str | None:
    """None if ``target`` can be built and run here, else one sentence on why, with the remedy."""
    try:
        if target == "cuda":
            import torch

            if not torch.cuda.is_available():
                return "no CUDA device: torch.cuda.is_available() is False"
        _toolchain(target)
        _ninja()
    except BuildError as error:
        return str(error)
    return None


# ---- The cache --------------------------------------------------------------


def _cache_directory() -> Path:
    chosen = os.environ.get("CUDA_REFERENCE_CACHE")
    if chosen:
        directory = Path(chosen).expanduser().absolute()
    else:
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        directory = Path(home).expanduser() / "triton-kernels-crosscheck"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to write to {directory}")
    except OSError as error:
        raise BuildError(
            f"the library cache {directory} cannot be written ({error}): "
            "set CUDA_REFERENCE_CACHE to a folder that can"
        ) from error
    return directory


def _key(source: Path, toolchain: _Toolchain) -> str:
    """Hash of the source, of every header beside it and in csrc, and of the toolchain."""
    digest = hashlib.sha256((toolchain.identity() + _EXPORTS).encode())
    for folder in dict.fromkeys((source.parent, CSRC)):
        for file in sorted(folder.rglob("*")):
            if file == source or (file.is_file() and file.suffix != ".cu"):
                content = file.read_bytes()
                digest.update(f"\n{file.relative_to(folder)} {len(content)}\n".encode())
                digest.update(content)
    return digest.hexdigest()[:12]


# ---- Building ---------------------------------------------------------------


def build(stems: Sequence[str], target: Target, *, csrc: Path = CSRC) -> dict[str, Path]:
    """Builds what is not in the cache, in one parallel ninja run; returns each stem's library.

    Raises BuildError with the compiler's first errors if a source does not compile.
    """
    csrc = Path(csrc).resolve()
    sources = {stem: csrc / f"{stem}.cu" for stem in stems}
    for source in sources.values():
        if not source.is_file():
            raise BuildError(f"there is no source {source}")
    toolchain = _toolchain(target)
    cache = _cache_directory()
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
    flags = (*_CUDA_FLAGS, f"-arch={arch}", "-cubin", "-Xptxas", "-v")
    toolchain = _Toolchain((str(_nvcc()),), flags, _cuda_headers())
    cached = _cache_directory() / f"{stem}-{arch}-{_key(source, toolchain)}.cubin"
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


def _run_ninja(work: Path, sources: dict[str, Path], toolchain: _Toolchain) -> None:
    """Compiles each source to work/<stem>.so, with the compiler's words in work/<stem>.log."""
    exports = work / "exports.map"
    exports.write_text(_EXPORTS)
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
    command_line = [_ninja(), "-C", str(work), "--quiet", "-k", "0"]
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
    if not described:  # the linker, or the compiler's driver
        described = [f"  {line}" for line in output[-10:]]
    return "\n".join([heading, *described[:6], f"  full log: {log}"])


# ---- Loading ----------------------------------------------------------------


_load_lock = threading.Lock()


def library(stem: str, target: Target, *, csrc: Path = CSRC) -> ctypes.CDLL:
    """The library of csrc/<stem>.cu for ``target``, built on first use, loaded once a process."""
    with _load_lock:
        return _load(stem, target, csrc)


@functools.cache
def _load(stem: str, target: Target, csrc: Path) -> ctypes.CDLL:
    path = build([stem], target, csrc=csrc)[stem]
    kind = _sanitizer() if target == "host" else None
    symbol = {"address": "__asan_init", "thread": "__tsan_init"}.get(kind or "")
    # Loading it all the same would end the process.
    if symbol and not hasattr(ctypes.CDLL(None), symbol):
        raise BuildError(
            f"CROSSCHECK_SANITIZE={kind} needs the sanitizer's runtime in the process from its "
            f"start: run python with the variables of sanitizer_environment({kind!r})"
        )
    loaded = ctypes.CDLL(str(path))
    loaded.crosscheck_error_string.argtypes = [ctypes.c_int]
    loaded.crosscheck_error_string.restype = ctypes.c_char_p
    return loaded


def sanitizer_environment(kind: str) -> dict[str, str]:
    """Variables under which a new python process can load host libraries sanitized for ``kind``.

    Add them to the environment of a child process; needs g++.
    """
    if kind not in _SANITIZER_FLAGS:
        raise ValueError(f"kind must be one of {', '.join(_SANITIZER_FLAGS)}, got {kind!r}")
    variables = {"CROSSCHECK_SANITIZE": kind}
    if kind == "undefined":  # its runtime comes with the library
        return {**variables, "UBSAN_OPTIONS": "print_stacktrace=1"}
    compiler = _host_compiler()
    name = {"address": "libasan.so", "thread": "libtsan.so"}[kind]
    query = [*compiler, f"-print-file-name={name}"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    if "clang" in Path(compiler[0]).name or not os.path.isabs(answer):
        raise BuildError(f"{shlex.join(compiler)} has no {name}: install g++ with its sanitizers")
    # libstdc++ comes along: where the program, python, does not link it, the runtime finds no
    # __cxa_throw at its start and aborts at the first C++ exception.
    variables["LD_PRELOAD"] = f"{os.path.realpath(answer)} libstdc++.so.6"
    variables["CUDA_VISIBLE_DEVICES"] = ""  # the CUDA driver does not start under a sanitizer
    # Python keeps memory to the end; fibers have no use for detect_stack_use_after_return.
    if kind == "address":
        variables["ASAN_OPTIONS"] = "detect_leaks=0:detect_stack_use_after_return=0"
    else:
        variables["TSAN_OPTIONS"] = "report_signal_unsafe=0"
    return variables
