"""The doctor's checks of the machine: the GPU, the tools that build the CUDA sources, the caches.

Each topic is a function that yields findings. torch is not imported at the top, because it may be
broken.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from compare.doctor.installation import ROOT, Finding, Grade, requirement

STALE = 3600  # seconds; a build without changes for this long is assumed to have been killed


# ---- GPU --------------------------------------------------------------------


def gpu() -> Iterator[Finding]:
    """The devices, the driver, nvcc, the architectures to build for. Having no GPU is "ok"."""
    driver, torch = _nvidia_smi(), _torch()
    present = torch is not None and torch.cuda.is_available()
    if torch is not None and present:
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            memory = f"{device.total_memory / 2**30:.0f} GiB"
            capability = f"compute capability {device.major}.{device.minor}"
            yield Finding("GPU", "ok", f"{device.name}, {memory}, {capability}")
        yield Finding("driver", "ok", driver or "version unknown: nvidia-smi is not on PATH")
        yield _nvml()
    elif driver and os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield Finding("GPU", "ok", "hidden by CUDA_VISIBLE_DEVICES: everything runs on the CPU")
    elif driver:
        version = "torch" if torch is None else f"torch {torch.__version__}"
        yield Finding(
            "GPU",
            "warning",
            f"nvidia-smi reports driver {driver}, but {version} sees no device",
            "install a torch built for CUDA, not newer than the driver supports",
        )
    else:
        yield Finding(
            "GPU", "ok", "none: Triton kernels are interpreted, CUDA sources are built for the CPU"
        )
    yield from _nvcc(torch, present)
    yield from _architectures(torch, present)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except Exception:  # noqa: BLE001 - said under versions
        return None


def _nvidia_smi() -> str:
    """The driver's version, or "" without a driver."""
    try:
        ran = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    except OSError:
        return ""
    return ran.stdout.split("\n")[0].strip() if ran.returncode == 0 else ""


def _nvml() -> Finding:
    """Whether bench can read the GPU's clocks, power and throttling."""
    from compare.timing import nvml

    if not (reason := nvml.missing()):
        return Finding("NVML", "ok", "tells bench the clocks, power and throttling")
    remedy = "make the driver's libnvidia-ml.so.1 available; containers: the utility capability"
    if "nvidia-ml-py" in reason:
        remedy = f"python -m pip install {requirement('nvidia-ml-py')}"
    says = f"{reason}; bench cannot watch clocks, power and throttling"
    return Finding("NVML", "warning", says, remedy)


def _nvcc(torch: Any, present: bool) -> Iterator[Finding]:
    needed: Grade = "warning" if present else "ok"
    compilers = compilers_module()
    try:
        nvcc = compilers._nvcc()
    except compilers.BuildError as error:
        without = "the CUDA sources run on the CPU only" if present else "not needed without a GPU"
        remedy = "install the CUDA toolkit and set CUDA_HOME to its folder" if present else ""
        yield Finding("nvcc", needed, f"{str(error).split(':')[0]}; {without}", remedy)
        return
    release = re.search(r"release (\d+\.\d+)", _output([str(nvcc), "--version"]).stdout)
    if not release:
        yield Finding("nvcc", needed, f"{nvcc} does not tell its version", f"run {nvcc} --version")
        return
    cuda = torch.version.cuda if torch is not None else None
    says = f"{release[1]}, {nvcc}"
    if cuda is None:
        yield Finding("nvcc", "ok", f"{says}; this torch has no CUDA to match")
    elif release[1] == ".".join(cuda.split(".")[:2]):
        yield Finding("nvcc", "ok", f"{says}; torch's CUDA is the same")
    else:
        yield Finding(
            "nvcc",
            needed,
            f"{says}; torch's CUDA is {cuda}: the driver may be too old for what this nvcc builds",
            f"set CUDA_HOME to a toolkit of CUDA {cuda}",
        )


def _architectures(torch: Any, present: bool) -> Iterator[Finding]:
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if not listed:
        return
    compilers, name = compilers_module(), "TORCH_CUDA_ARCH_LIST"
    remedy = f"unset {name}, or write for example '8.0;9.0a+PTX'"
    try:
        flags = compilers._architectures()
    except compilers.BuildError as error:
        yield Finding(name, "warning", str(error).split(";")[0], remedy)
        return
    for index in range(torch.cuda.device_count()) if present else ():
        major, minor = torch.cuda.get_device_capability(index)
        # Machine code runs on devices of its major version with an equal or larger minor version;
        # PTX runs on equal and all later versions; code with a suffix on its own version only.
        codes = [re.findall(r"code=(sm|compute)_(\d+)(\d)([af]?)$", flag) for flag in flags]
        if not any(
            ((int(a), int(b)) <= (major, minor) if kind == "compute" else int(a) == major)
            and int(b) <= (minor if int(a) == major else 9)
            and (not suffix or (int(a), int(b)) == (major, minor))
            for kind, a, b, suffix in (code[0] for code in codes if code)
        ):
            says = f"{listed!r} leaves out device {index}, which is {major}.{minor}"
            yield Finding(name, "problem", says, f"unset {name}, or add {major}.{minor} to it")
            return
    yield Finding(name, "ok", listed)


# ---- Compilers ------------------------------------------------------------


def compilers_module() -> ModuleType:
    """cuda_reference._compilers. It needs no torch, but its package does: if that cannot be
    imported, the file is loaded alone."""
    try:
        return importlib.import_module("cuda_reference._compilers")
    except Exception:  # noqa: BLE001 - said under versions
        name = "_compilers_without_their_package"
        if name not in sys.modules:
            path = ROOT / "cuda_reference" / "_compilers.py"
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]


def _output(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def tools() -> Iterator[Finding]:
    """The host compiler, ninja, CUDA's headers, the sanitizers, cuobjdump."""
    compilers = compilers_module()
    try:
        compiler = list(compilers._host_compiler())
    except (compilers.BuildError, ValueError) as error:  # ValueError: CXX with an open quote
        chosen = "unset CXX, or set it to an installed compiler, as CXX=g++"
        remedy = chosen if os.environ.get("CXX") else "apt-get install g++ (or clang++)"
        yield Finding("C++ compiler", "problem", str(error).split(";")[0], remedy)
    else:
        version = _output([*compiler, "--version"]).stdout.partition("\n")[0]
        failure = _link(compiler)
        if failure:
            remedy = f"reinstall it, or set CXX to another compiler; it says: {failure}"
            yield Finding(
                "C++ compiler", "problem", f"{shlex.join(compiler)} cannot link a library", remedy
            )
        else:
            yield Finding("C++ compiler", "ok", f"{version}, {shlex.join(compiler)}")
            yield _sanitizers(compilers, compiler)
    for name, look, remedy in (
        ("ninja", compilers._ninja, "python -m pip install ninja"),
        ("CUDA headers", compilers._cuda_headers, "python -m pip install triton, or set CUDA_HOME"),
    ):
        try:
            place = Path(look())
        except compilers.BuildError as error:
            yield Finding(name, "problem", str(error).split(":")[0], remedy)
            continue
        if place.exists():
            yield Finding(name, "ok", str(place))
        else:
            yield Finding(name, "problem", f"{place} is not there", f"{remedy} (--force-reinstall)")
    wheel = [
        folder / "backends/nvidia/bin/cuobjdump" for folder in compilers._package_folders("triton")
    ]
    if any(os.access(file, os.X_OK) for file in wheel):
        yield Finding("cuobjdump", "ok", "in the Triton package")
    else:
        says = "not in the Triton package: registers and SASS cannot be read"
        yield Finding("cuobjdump", "warning", says, "install Triton from its wheel")


def _link(compiler: list[str], *flags: str) -> str:
    """The first error of building an empty shared library; "" if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.cpp")
        source.write_text("#include <vector>\nint size() { return std::vector<int>(1).size(); }\n")
        output = ["-std=c++17", "-fPIC", "-shared", "-o", str(source.with_suffix(".so"))]
        ran = _output([*compiler, *flags, *output, str(source)])
    lines = [line for line in ran.stderr.splitlines() if "error" in line or "cannot" in line]
    return (lines or [f"exit status {ran.returncode}"])[0] if ran.returncode else ""


def _sanitizers(compilers: ModuleType, compiler: list[str]) -> Finding:
    failures = {}
    for kind in compilers._SANITIZER_FLAGS:
        try:
            compilers.sanitizer_environment(kind)
            failures[kind] = _link(compiler, f"-fsanitize={kind}")
        except compilers.BuildError as error:
            failures[kind] = str(error)
    missing = [kind for kind, failure in failures.items() if failure]
    if not missing:
        return Finding("sanitizers", "ok", f"{', '.join(failures)}: linked")
    says = f"--sanitize cannot use {', '.join(missing)}: {failures[missing[0]]}"
    return Finding("sanitizers", "warning", says, "install g++ with libasan, libtsan and libubsan")


# ---- Caches -----------------------------------------------------------------


def caches() -> Iterator[Finding]:
    """The caches' folders, whether they can be written, and what killed processes left in them."""
    compilers = compilers_module()
    try:
        folder = compilers.cache_directory()
    except compilers.BuildError as error:
        says = re.sub(r": set CUDA_REFERENCE_CACHE.*", "", str(error))
        remedy = "set CUDA_REFERENCE_CACHE to a folder of your own"
        yield Finding("library cache", "problem", says, remedy)
    else:
        libraries = list(folder.glob("*.so"))
        size = sum(file.stat().st_size for file in libraries) / 1e6
        says = f"{folder}: {len(libraries)} libraries, {size:.0f} MB"
        if os.access(folder, os.W_OK | os.X_OK):
            yield Finding("library cache", "ok", says)
        else:
            says += "; it cannot be written: libraries that it lacks cannot be built"
            remedy = "set CUDA_REFERENCE_CACHE to a folder that can be written"
            yield Finding("library cache", "warning", says, remedy)
        yield from _leftovers("library cache", "builds that were killed", folder.glob("build-*"))
    yield _triton_cache()
    # Triton's cache and ours write files in one step, without locks; torch's extensions use locks.
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    extensions = Path(root) if root else home / "torch_extensions"
    locks = [*extensions.glob("*/lock"), *extensions.glob("*/*/lock")]
    whose = "locks that torch.utils.cpp_extension waits on for ever (this project has none)"
    yield from _leftovers("torch extensions", whose, locks)


def _leftovers(name: str, what: str, paths: Iterable[Path]) -> Iterator[Finding]:
    """A finding about the paths that were not changed for an hour, if there are any."""
    stale = []
    for path in paths:
        files = [path, *path.glob("*")]
        newest = max(file.stat().st_mtime for file in files if file.exists())
        if time.time() - newest > STALE:
            stale.append(str(path))
    if stale:
        yield Finding(
            name, "warning", f"left over: {len(stale)} {what}", f"rm -r {shlex.join(sorted(stale))}"
        )


def _triton_cache() -> Finding:
    """Whether Triton's cache can be written. It keeps compiled kernels, so only a GPU needs it."""
    home = Path(os.environ.get("TRITON_HOME") or "~").expanduser()
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    existing = next(f for f in (folder.absolute(), *folder.absolute().parents) if f.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Finding("Triton's cache", "ok", str(folder))
    torch = _torch()
    needed = torch is not None and torch.cuda.is_available()
    return Finding(
        "Triton's cache",
        "problem" if needed else "warning",
        f"{folder} cannot be written: kernels cannot be compiled for a GPU",
        "set TRITON_CACHE_DIR to a folder that can be written",
    )
