"""The builder: what it builds, what it keeps, and what it says when it cannot."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import processes
import pytest
from cached import needs_host_target, needs_nvcc

from cuda_reference import _build, _compilers

SOURCE = """
#include "crosscheck.cuh"
#include "answer.cuh"
__global__ void fill(int* out) { out[threadIdx.x] = ANSWER + int(threadIdx.x); }
extern "C" int run(int* out, int n, cudaStream_t stream) {
  LAUNCH(fill, 1, n, 0, stream, out);
  return cudaGetLastError();
}
"""


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of these tests' own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_REFERENCE_CACHE", str(folder))
        for name in ("CXX", "CROSSCHECK_SANITIZE", "TORCH_CUDA_ARCH_LIST"):
            patch.delenv(name, raising=False)
        yield folder


def write(folder: Path, answer: int = 42, source: str = SOURCE) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "sample.cu").write_text(source)
    (folder / "answer.cuh").write_text(f"#pragma once\n#define ANSWER {answer}\n")
    return folder


def path_of(csrc: Path, target: _compilers.Target = "host") -> str:
    """What the library's record would be named by, without building it."""
    toolchain = _compilers._toolchain(target)
    return _build._key(csrc / "sample.cu", toolchain)


def run(library: ctypes.CDLL) -> list[int]:
    out = (ctypes.c_int * 3)()
    assert library.run(out, 3, None) == 0
    return list(out)


@needs_host_target
def test_builds_once_and_again_when_a_header_changes(tmp_path: Path, cache: Path) -> None:
    csrc = write(tmp_path / "csrc")
    first = _build.build(["sample"], "host", csrc=csrc)["sample"]
    built_at = first.stat().st_mtime_ns
    assert run(_build.library("sample", "host", csrc=csrc)) == [42, 43, 44]
    assert _build.library("sample", "host", csrc=csrc) is _build.library(
        "sample", "host", csrc=csrc
    )

    same = write(tmp_path / "same")
    start = time.perf_counter()
    library = _build.library("sample", "host", csrc=same)
    assert time.perf_counter() - start < 0.5  # no compiler ran: 3 ms, but machines stall
    assert library._name == str(first)
    assert first.stat().st_mtime_ns == built_at

    other = write(tmp_path / "other", answer=7)
    assert run(_build.library("sample", "host", csrc=other)) == [7, 8, 9]
    assert not list(cache.glob("build-*")), "a working folder was left behind"


@needs_host_target
def test_checkouts_share_the_libraries_that_name_no_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, list[str]] = {"": [], "address": [], "watch": []}
    for name in ("one", "other"):
        checkout = shutil.copytree(_compilers.CSRC, tmp_path / name)
        write(checkout)
        monkeypatch.setattr(_compilers, "CSRC", checkout)
        for kind, found in keys.items():
            monkeypatch.setenv("CROSSCHECK_SANITIZE", kind)
            found.append(path_of(checkout))
    assert {kind: len(set(found)) for kind, found in keys.items()} == {
        "": 1,
        "address": 2,  # debug information
        "watch": 2,
    }


@needs_host_target
def test_key_depends_on_all_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csrc = write(tmp_path / "csrc")
    keys = [path_of(csrc)]
    for kind in ("address", "thread", "undefined"):
        monkeypatch.setenv("CROSSCHECK_SANITIZE", kind)
        keys.append(path_of(csrc))
    monkeypatch.delenv("CROSSCHECK_SANITIZE")
    monkeypatch.setattr(_compilers, "_HOST_FLAGS", (*_compilers._HOST_FLAGS, "-DCHANGED"))
    keys.append(path_of(csrc))
    monkeypatch.undo()

    compiler = tmp_path / "c++"  # the same program under another name and time
    compiler.write_text(f'#!/bin/sh\nexec {_compilers._host_compiler()[0]} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    keys.append(path_of(csrc))
    monkeypatch.undo()

    (csrc / "sample.cu").write_text(SOURCE + "// changed\n")
    keys.append(path_of(csrc))
    (csrc / "unrelated.cu").write_text("another op\n")
    assert path_of(csrc) == keys[-1]
    (csrc / "new.cuh").write_text("// a header\n")
    keys.append(path_of(csrc))
    assert len(set(keys)) == len(keys)


@needs_host_target
def test_compile_error_shows_the_lines_and_the_log(tmp_path: Path) -> None:
    csrc = write(tmp_path / "csrc", source=SOURCE.replace("ANSWER +", "QUESTION +"))
    with pytest.raises(_compilers.BuildError) as caught:
        _build.library("sample", "host", csrc=csrc)
    message = str(caught.value)
    assert "could not build sample.cu for the host target" in message
    assert "sample.cu:4: error:" in message
    assert "QUESTION" in message
    assert "4 | __global__ void fill(int* out) { out[threadIdx.x] = QUESTION" in message
    log = Path(message.rsplit("full log: ", 1)[1])
    assert "QUESTION" in log.read_text()


@needs_host_target
def test_one_bad_source_does_not_hide_the_others(tmp_path: Path) -> None:
    csrc = write(tmp_path / "csrc", answer=5)
    (csrc / "broken.cu").write_text('#include "absent.cuh"\n')
    with pytest.raises(_compilers.BuildError, match=r"broken\.cu:1: error: absent\.cuh"):
        _build.build(["broken", "sample"], "host", csrc=csrc)
    start = time.perf_counter()
    _build.build(["sample"], "host", csrc=csrc)
    assert time.perf_counter() - start < 0.5
    with pytest.raises(_compilers.BuildError, match=r"no source .*nothing\.cu"):
        _build.build(["nothing"], "host", csrc=csrc)


@needs_host_target
def test_two_processes_at_once(root: Path, tmp_path: Path, cache: Path) -> None:
    csrc = write(tmp_path / "csrc", answer=99)
    program = (
        "import sys, ctypes, pathlib\n"
        "from cuda_reference import _build\n"
        "library = _build.library('sample', 'host', csrc=pathlib.Path(sys.argv[1]))\n"
        "out = (ctypes.c_int * 1)()\n"
        "assert library.run(out, 1, None) == 0\n"
        "print(out[0])\n"
    )
    with ThreadPoolExecutor(2) as both:
        running = [both.submit(processes.python, root, "-c", program, str(csrc)) for _ in range(2)]
        children = [each.result() for each in running]
    assert [child.returncode for child in children] == [0, 0], children
    assert [child.stdout.strip() for child in children] == ["99", "99"]
    assert len(list(cache.glob(f"sample-host-{path_of(csrc)}.json"))) == 1
    assert not list(cache.glob("build-*"))


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    assert "CXX is '/nonexistent'" in str(_build.unavailable("host"))
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _build.unavailable("host") == (
        "no C++ compiler found: install g++ (or clang++, or set CXX)"
    )
    with pytest.raises(_compilers.BuildError, match=r"install g\+\+"):
        _build.library("sample", "host", csrc=write(tmp_path / "csrc"))


def test_missing_ninja_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ninja", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(_compilers.BuildError, match="pip install ninja"):
        _compilers._ninja()


def test_unwritable_cache_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(_compilers.BuildError, match="set CUDA_REFERENCE_CACHE"):
        _compilers.cache_directory()


def test_unknown_sanitizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSCHECK_SANITIZE", "memory")
    with pytest.raises(_compilers.BuildError, match="can be address, thread, undefined"):
        _compilers._sanitizer()
    with pytest.raises(ValueError, match="got 'memory'"):
        _compilers.sanitizer_environment("memory")


@needs_host_target
def test_sanitized_library_needs_its_runtime(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CROSSCHECK_SANITIZE", "thread")
    with pytest.raises(_compilers.BuildError, match=r"sanitizer_environment\('thread'\)"):
        _build.library("sample", "host", csrc=write(tmp_path / "csrc"))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("9.0", ["arch=compute_90,code=sm_90"]),
        ("8.0;10.0", ["arch=compute_80,code=sm_80", "arch=compute_100,code=sm_100"]),
        (
            "8.0 9.0a+PTX",
            [
                "arch=compute_80,code=sm_80",
                "arch=compute_90a,code=sm_90a",
                "arch=compute_90a,code=compute_90a",
            ],
        ),
    ],
)
def test_architecture_list(
    monkeypatch: pytest.MonkeyPatch, listed: str, expected: list[str]
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    assert _compilers._architectures()[1::2] == expected
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hopper")
    with pytest.raises(_compilers.BuildError, match="TORCH_CUDA_ARCH_LIST has 'Hopper'"):
        _compilers._architectures()


@needs_nvcc
def test_nvcc_builds_without_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    csrc = write(tmp_path / "csrc")
    library = _build.library("sample", "cuda", csrc=csrc)  # cudart is static: loads anywhere
    assert library.crosscheck_error_string(719) == b"unspecified launch failure"

    broken = write(tmp_path / "broken", source=SOURCE.replace("ANSWER +", "QUESTION +"))
    with pytest.raises(_compilers.BuildError, match=r"sample\.cu:4: error: .*QUESTION"):
        _build.build(["sample"], "cuda", csrc=broken)


@needs_host_target
def test_nothing_happens_at_import(root: Path) -> None:
    program = (
        "import subprocess, os, sys\n"
        "def forbidden(*a, **k): raise AssertionError(a)\n"
        "subprocess.Popen.__init__ = forbidden\n"
        "import cuda_reference._build\n"
        "import torch\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    environment = {**os.environ, "PATH": "/nonexistent", "CUDA_REFERENCE_CACHE": "/nonexistent"}
    done = processes.python(root, "-c", program, environment=environment)
    assert done.returncode == 0, done.stderr


def test_a_header_that_the_toolkit_lacks(tmp_path: Path) -> None:
    said = "/torch/ATen/cuda/CUDAContextLight.h:8:10: fatal error: cusparse.h: No such file or"
    text = _build._describe_failure(tmp_path / "x.cu", "cuda", said, tmp_path / "log", tmp_path)
    assert text.startswith("could not build x.cu for the cuda target:\n  cusparse.h belongs to ")
    assert "Set CUDA_HOME to a whole toolkit" in text
    assert "CUDAContextLight.h:8: error: cusparse.h: No such file" in text
    other = _build._describe_failure(
        tmp_path / "x.cu", "cuda", said.replace("cusparse.h", "mine.h"), tmp_path / "log", tmp_path
    )
    assert "CUDA_HOME" not in other
