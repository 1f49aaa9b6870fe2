"""Finds the compilers and headers of this machine for a csrc/<stem>.cu, and chooses the flags.

:mod:`cuda_reference._build` lists the environment variables that affect the choice.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Target = Literal["cuda", "host"]

CSRC = Path(__file__).resolve().parent / "csrc"

_HOST_FLAGS = (
    *("-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared", "-pthread"),
    # To glibc's fortified longjmp a switch between fibers looks like stack corruption.
    "-U_FORTIFY_SOURCE",
    # Statics of templates, shared arrays among them, would be unified across libraries
    # (STB_GNU_UNIQUE).
    "-Wl,--version-script={exports}",
    *("-Wall", "-Wextra", "-Wno-unknown-pragmas"),
)
# Kernels run on small tensors here: more optimisation takes the compiler longer than it saves.
# The compiler inserts calls for misaligned accesses, which a GPU refuses. The handlers are in
# csrc/cuda_on_cpu_memory.h instead of libubsan, which would be among the default libraries.
_OPTIMISE_FLAGS = ("-O1", "-fsanitize=alignment", "-DCUDA_ON_CPU_ALIGNMENT", "-nodefaultlibs")
# For sanitizers; lines are enough. addr2line takes DWARF 5's first file for the one before it.
_DEBUG_FLAGS = ("-O1", "-gdwarf-4", "-g1", "-fno-omit-frame-pointer")
_SANITIZER_FLAGS = {
    "address": ("-fsanitize=address,alignment", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize-recover=all"),
}
# The compiler inserts ThreadSanitizer's calls. The handlers are in csrc/cuda_on_cpu_watch.h instead
# of libtsan, which would be among the default libraries.
_WATCH = "watch"
_WATCH_FLAGS = (
    *("-fsanitize=thread", "-DCUDA_ON_CPU_WATCH", "-fno-omit-frame-pointer"),
    *(f"-Wl,--wrap={name}" for name in ("memcpy", "memmove", "memset")),
    "-nodefaultlibs",
)
_OWN_LIBRARIES = ("-x", "none", "-lstdc++", "-lm", "-lgcc_s", "-lc")
# The sources write fused multiply-adds explicitly; nvcc must not make others.
_CUDA_FLAGS = (
    *("-std=c++17", "-O3", "-fmad=false", "-lineinfo"),
    *("-shared", "-cudart", "static", "-Xcompiler", "-fPIC"),
)
# Launchers are extern "C" and keep their names. Names with an underscore first are mangled C++
# names, or the compiler's own.
_EXPORTS = "{ global: *; local: _*; };\n"


# In torch's form: "8.0", "9.0a", "9.0+PTX".
ARCHITECTURE = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")


class BuildError(RuntimeError):
    """A library cannot be built or loaded. The message has the reason and a remedy."""


@dataclass(frozen=True)
class _Toolchain:
    """A compiler with its flags. Together with the sources they determine a library's content."""

    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    headers: Path
    libraries: tuple[str, ...] = ()  # after the source, so that archives resolve its symbols

    def command(self, source: Path, output: Path, exports: Path) -> list[str]:
        flags = [flag.replace("{exports}", str(exports)) for flag in self.flags]
        flags = [flag.replace("{csrc}", str(CSRC)) for flag in flags]
        includes = ["-I", str(source.parent), "-I", str(CSRC)]
        return [*self.compiler, *flags, *includes, "-o", str(output), str(source), *self.libraries]

    def identity(self) -> str:
        """The compiler and CUDA's headers, identified by path, size and time of change, because
        asking the compiler for its version takes longer."""
        programs = filter(None, map(shutil.which, self.compiler))
        files = [*(Path(program).resolve() for program in programs)]
        files.append(self.headers / "cuda_runtime_api.h")
        stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return repr((self.compiler, self.flags, self.libraries, stats))

    def version(self) -> str:
        """The compiler's name and version in one line, for output."""
        command = [*self.compiler, "--version"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = ran.stdout.strip().splitlines() or ["unknown"]
        return next((line for line in lines if " release " in line), lines[0])


# ---- Finding compilers and headers ------------------------------------------


def _host_compiler() -> tuple[str, ...]:
    """The command of the C++ compiler. CXX may be several words, such as "ccache g++"."""
    chosen = os.environ.get("CXX")
    if chosen:
        name, *others = shlex.split(chosen)
        path = shutil.which(name)
        if not path:
            raise BuildError(
                f"no C++ compiler found: CXX is {chosen!r}; unset it, or name an installed compiler"
            )
        return (path, *others)
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            return (path,)
    raise BuildError("no C++ compiler found: install g++ (or clang++, or set CXX)")


def _package_folders(package: str) -> list[Path]:
    """The folders of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def _pip_toolkits() -> list[Path]:
    """The CUDA folders of NVIDIA's pip packages, newest first."""
    toolkits = [folder for root in _package_folders("nvidia") for folder in root.glob("cu[0-9]*")]
    return sorted(toolkits, key=lambda folder: int(re.sub(r"\D", "", folder.name)), reverse=True)


def _toolkits() -> Iterator[Path]:
    """Folders that may have a CUDA toolkit, in order of preference."""
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
    # nvcc on PATH may be a wrapper outside of a toolkit.
    if path := shutil.which("nvcc"):
        return Path(path)
    raise BuildError(
        "nvcc not found: pip install 'triton-kernels-crosscheck[nvcc]', or install the CUDA "
        "toolkit and set CUDA_HOME to its folder"
    )


def _cuda_headers() -> Path:
    """The folder with cuda_runtime_api.h and cuda_fp16.h, in a toolkit or in the Triton wheel."""
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
    if path := shutil.which("ninja"):
        return path
    raise BuildError("ninja not found: pip install ninja")


def _architectures(listed: Sequence[str] = ()) -> list[str]:
    """nvcc's flags for the listed architectures, else for TORCH_CUDA_ARCH_LIST, else for the
    present devices."""
    listed = listed or os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
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
        match = ARCHITECTURE.fullmatch(name)
        if not match:
            raise BuildError(f"TORCH_CUDA_ARCH_LIST has {name!r}; write for example '8.0;9.0a+PTX'")
        number = "".join(match.group(1, 2, 3))
        flags += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
        if match.group(4):
            flags += ["-gencode", f"arch=compute_{number},code=compute_{number}"]
    return flags


def _sanitizer() -> str | None:
    kind = os.environ.get("CROSSCHECK_SANITIZE") or None
    if kind is not None and kind not in (*_SANITIZER_FLAGS, _WATCH):
        raise BuildError(
            f"CROSSCHECK_SANITIZE is {kind!r}; it can be {', '.join(_SANITIZER_FLAGS)}"
        )
    return kind


def _toolchain(target: Target, architectures: Sequence[str] = ()) -> _Toolchain:
    if target == "cuda":
        nvcc = _nvcc()
        # nvcc of a toolkit from pip does not know its library folder.
        flags = [*_CUDA_FLAGS, *_architectures(architectures), f"-L{nvcc.parent.parent / 'lib'}"]
        return _Toolchain((str(nvcc),), tuple(flags), _cuda_headers())
    if target != "host":
        raise ValueError(f"target must be 'cuda' or 'host', got {target!r}")
    compiler, headers = _host_compiler(), _cuda_headers()
    kind = _sanitizer()
    checked = {**_SANITIZER_FLAGS, _WATCH: _WATCH_FLAGS}
    optimise = (*_DEBUG_FLAGS, *checked[kind]) if kind else _OPTIMISE_FLAGS
    # csrc/host has a substitute for <nv/target>, which Triton's headers lack; it is searched last.
    # Its path is no part of the library's key, unless debug information has paths of sources.
    last = f"{CSRC if kind else '{csrc}'}/host"
    includes = ["-isystem", str(headers), "-idirafter", last]
    libraries = _OWN_LIBRARIES if kind in (None, _WATCH) else ()
    words = (*_HOST_FLAGS, *optimise, *includes, "-x", "c++")
    return _Toolchain(compiler, words, headers, libraries)


def hash_sources(source: Path, *others: str) -> str:
    """A hash of the source, of all headers beside it and in csrc, and of ``others``."""
    digest = hashlib.sha256("".join(others).encode())
    for folder in dict.fromkeys((source.parent, CSRC)):
        for file in sorted(folder.rglob("*")):
            if file == source or (file.is_file() and file.suffix != ".cu"):
                content = file.read_bytes()
                digest.update(os.fsencode(f"\n{file.relative_to(folder)} {len(content)}\n"))
                digest.update(content)
    return digest.hexdigest()[:12]


def portable_hash(source: Path, target: Target) -> str:
    """A hash of the sources and of the flags that affect results, but not of compiler and
    machine."""
    flags = _CUDA_FLAGS if target == "cuda" else (*_HOST_FLAGS, *_OPTIMISE_FLAGS)
    return hash_sources(source, *flags, _EXPORTS)


def cache_directory(*below: str) -> Path:
    """The cache of built libraries, or a folder below it. It is created for this user if it does
    not exist, and may be read-only.

    Raises:
        BuildError: it cannot be created; or other users could have written to it, and a library
            runs code when it is loaded.
    """
    chosen = os.environ.get("CUDA_REFERENCE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(chosen) if chosen else Path(home) / "triton-kernels-crosscheck"
    try:
        directory = directory.expanduser()
        for folder in ("", *below):
            directory /= folder
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = directory.resolve()  # another user's link could be changed later
            if problem := open_to_others(directory):
                raise PermissionError(problem)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        raise BuildError(
            f"the library cache {directory} cannot be used ({error}): "
            "set CUDA_REFERENCE_CACHE to a folder of your own"
        ) from error
    return directory


def open_to_others(path: Path) -> str | None:
    """How users other than this one and root could have written a file or folder; None if they
    could not."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to another user, uid {status.st_uid}"
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        return f"others can write there, its mode is {mode:o}; run chmod -R go-w on it"
    return None


def sanitizer_environment(kind: str) -> dict[str, str]:
    """Environment variables with which a new Python process can load sanitized host libraries.

    Add them to the environment of a child process. Needs g++.

    Raises:
        ValueError: there is no such sanitizer.
        BuildError: the compiler lacks its runtime.
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
    # libstdc++ is preloaded, too: python does not link it, and without it the sanitizer's runtime
    # finds no __cxa_throw at its start, and aborts at the first C++ exception.
    variables["LD_PRELOAD"] = f"{os.path.realpath(answer)} libstdc++.so.6"
    variables["CUDA_VISIBLE_DEVICES"] = ""  # the CUDA driver does not start under a sanitizer
    # Python does not free all memory at its end. Fibers do not need detect_stack_use_after_return.
    if kind == "address":
        variables["ASAN_OPTIONS"] = "detect_leaks=0:detect_stack_use_after_return=0"
    else:
        variables["TSAN_OPTIONS"] = "report_signal_unsafe=0"
    return variables
