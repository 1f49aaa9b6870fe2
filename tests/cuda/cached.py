"""A source without headers, its build in a cache, and what the cache keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_reference import BuildError, _build, _compilers

# Without the headers of csrc, which take seconds to compile.
SOURCE = """
#include <cstdio>
#include <cstdlib>
#ifdef __CUDACC__
__global__ void kernel(float* x) { *x = 1; }
#endif
extern "C" int answer() { return 42; }
extern "C" const char* crosscheck_error_string(int) { return "none"; }
__attribute__((constructor)) static void loaded() {
  if (const char* mark = std::getenv("MARK")) std::fclose(std::fopen(mark, "w"));
}
"""


def missing(find: Callable[[], object]) -> str | None:
    try:
        find()
    except BuildError as error:
        return str(error)
    return None


NO_HOST, NO_NVCC = _build.unavailable("host"), missing(_compilers._nvcc)
needs_host_target = pytest.mark.skipif(NO_HOST is not None, reason=str(NO_HOST))
needs_nvcc = pytest.mark.skipif(NO_NVCC is not None, reason=str(NO_NVCC))


def write_source(folder: Path) -> Path:
    folder.mkdir()
    (folder / "sample.cu").write_text(SOURCE)
    return folder


def build(csrc: Path) -> Path:
    return _build.build(["sample"], "host", csrc=csrc)["sample"]


def record(cache: Path) -> Path:
    (found,) = cache.glob("sample-*.json")
    return found
