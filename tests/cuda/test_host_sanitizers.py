"""The host target under gcc's sanitizers, and the same sources under other compilers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from host_kernels import line_of

from cuda_reference import _build, _compilers

pytestmark = pytest.mark.skipif(
    _build.unavailable("host") is not None, reason=str(_build.unavailable("host"))
)


# ---- sanitizers ----

MIRROR = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
x, out = (ctypes.c_float * 256)(), (ctypes.c_float * 256)()
barrier, shared_over, global_over = map(int, sys.argv[2:])
sys.exit(library.run_mirror(x, out, ctypes.c_bool(barrier), shared_over, global_over))
"""

# Every kernel, and a correct one after each fault: the machinery must give a sanitizer no cause.
EVERYTHING = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
a, b, c, d = ((ctypes.c_char * 65536)() for _ in range(4))
codes = [
    library.run_indices(a), library.run_unset(a, 0), library.run_unset(a, 1),
    library.run_shift(a, b, 256, True), library.run_gemm(a, b, c, 32),
    library.run_shuffles(a, 64), library.run_early(a), library.run_votes(a),
    library.run_atomics(a, b, c), library.run_vectors(a, b, c, d),
    library.run_fused(a, b, c, d, 99),
]
assert not any(codes), codes
for fault in (2, 4, 5, 6):
    assert library.run_faulty(fault)
    assert not library.run_shift(a, b, 256, True)
"""


def run_sanitized(
    kind: str, sources: Path, monkeypatch: pytest.MonkeyPatch, program: str, *arguments: int
) -> subprocess.CompletedProcess[str]:
    try:
        variables = _compilers.sanitizer_environment(kind)
    except _compilers.BuildError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("CROSSCHECK_SANITIZE", kind)
    path = _build.build(["kernels"], "host", csrc=sources)["kernels"]
    command = [sys.executable, "-c", program, str(path), *map(str, arguments)]
    environment = {**os.environ, **variables}
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("ThreadSanitizer cannot live with this kernel's address randomisation")
    return ran


@pytest.mark.parametrize("kind", ["address", "thread", "undefined"])
def test_sanitizers_pass_correct_kernels(
    kind: str, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CROSSCHECK_THREAD_ORDER", "reverse" if kind == "thread" else "forward")
    ran = run_sanitized(kind, sources, monkeypatch, EVERYTHING)
    assert ran.returncode == 0, ran.stderr
    assert "ERROR" not in ran.stderr
    assert "data race" not in ran.stderr


def test_asan_finds_a_shared_array_overrun(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_sanitized("address", sources, monkeypatch, MIRROR, 1, 1, 0)
    assert ran.returncode != 0
    assert "AddressSanitizer: use-after-poison" in ran.stderr
    assert f"kernels.cu:{line_of('WRITE')}" in ran.stderr
    assert re.search(r"in kernel mirror, block \(0, 0, 0\) thread \(63, 0, 0\)", ran.stderr)
    assert re.search(r"shared array tile at 0x\w+, 256 bytes of 4: 64\n", ran.stderr)


def test_asan_finds_a_global_overrun(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_sanitized("address", sources, monkeypatch, MIRROR, 1, 0, 256 - 63)
    assert ran.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in ran.stderr
    assert f"kernels.cu:{line_of('READ')}" in ran.stderr


def test_tsan_names_both_lines_of_a_missing_barrier(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run_sanitized("thread", sources, monkeypatch, MIRROR, 0, 0, 0)
    assert ran.returncode != 0
    assert "ThreadSanitizer: data race" in ran.stderr
    assert f"kernels.cu:{line_of('WRITE')}" in ran.stderr
    assert f"kernels.cu:{line_of('READ')}" in ran.stderr
    assert "mirror(" in ran.stderr
    assert "tile" in ran.stderr
    assert re.search(r"Thread T\d+ 'block \(0, 0, 0\) thread \(\d+, 0, 0\)'", ran.stderr)


# ---- the same sources under other compilers ----


def test_the_same_source_compiles_with_nvcc(sources: Path, tmp_path: Path) -> None:
    try:
        nvcc = _compilers._nvcc()
    except _compilers.BuildError as error:
        pytest.skip(str(error))
    source = sources / "kernels.cu"
    output = tmp_path / "kernels.cubin"
    flags = ["-std=c++17", "-cubin", "-arch=sm_90", "-I", str(_compilers.CSRC)]
    # The faults are meant; a launch that -cubin drops makes its launcher look unused.
    subprocess.run([nvcc, *flags, "-o", output, source], check=True, capture_output=True)
    assert output.stat().st_size > 0


@pytest.mark.parametrize("stem", sorted(path.stem for path in _compilers.CSRC.glob("*.cu")))
def test_our_sources_compile_without_a_warning(stem: str, tmp_path: Path) -> None:
    toolchain = _compilers._toolchain("host")
    command = toolchain.command(_compilers.CSRC / f"{stem}.cu", tmp_path / "x", tmp_path / "x")
    strict = [*command, "-fsyntax-only", "-Werror"]
    ran = subprocess.run(strict, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_sanitized_processes_survive_torchs_exceptions(
    kind: str, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import torch\ntry: torch.ones(2) @ torch.ones(3)\nexcept RuntimeError: print('ok')"
    ran = run_sanitized(kind, sources, monkeypatch, program)
    assert ran.stdout == "ok\n", ran.stderr
    assert "ERROR" not in ran.stderr
