# ruff: noqa: E501 - the tools' own long lines
"""What sanitizers print is read rightly, and what cannot be read is shown all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compare.debugging.cuda import tool_output
from compare.debugging.cuda.reports import Memory, SharedArray, short_name
from compare.debugging.findings.placed import Placed
from cuda_reference import _compilers
from triton_kernels.interpreter.memory import Argument

SOURCES = {path.name: path.read_text().splitlines() for path in _compilers.CSRC.glob("*.cu*")}

# ---- compute-sanitizer's words: in the forms of its documentation, of old and new releases ----

X = {"name": "x", "address": 0x7F0000000000, "shape": [5, 7], "strides": [7, 1], "dtype": "float32"}

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at float load<float>(const Tensor &, long long)+0x1b0 in elementwise.cuh:59
=========     by thread (3,0,0) in block (1,0,0)
=========     Address 0x7f000000008c is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f0000000000 of size 140 bytes
=========     Device Frame: void square_1d_kernel<float>(Tensor, Tensor, long long)+0x1b0 in square.cu:27
=========     Saved host backtrace up to driver entry point at kernel launch time
=========
========= Invalid __global__ read of size 4 bytes
=========     at float load<float>(const Tensor &, long long)+0x1b0 in elementwise.cuh:59
=========     by thread (4,0,0) in block (1,0,0)
=========     Access to 0x7f0000000090 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f0000000000 of size 140 bytes
=========     Device Frame: void square_1d_kernel<float>(Tensor, Tensor, long long)+0x1b0 in square.cu:27
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to cudaStreamSynchronize.
=========
========= ERROR SUMMARY: 3 errors
"""
OLD_MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 16 bytes
=========     at 0x270 in /somewhere/cuda_reference/csrc/add.cu:68:void add_vector_kernel<float, float4, (int)4>(float *)
=========     by thread (24,0,0) in block (0,0,0)
=========     Address 0x7f0000000004 is misaligned
=========
========= ERROR SUMMARY: 1 error
"""
SHARED = """\
========= Invalid __shared__ write of size 4 bytes
=========     at gemm_tiled_kernel<float>(Tensor, Tensor, Tensor, Epilogue)+0x120 in gemm.cuh:91
=========     by thread (2,1,0) in block (0,0,0)
=========     Address 0x880 is out of bounds
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void gemm_tiled_kernel<float>(Tensor, Tensor, Tensor, Epilogue)+0xd790 in gemm.cuh:91
=========     and Read access at void gemm_tiled_kernel<float>(Tensor, Tensor, Tensor, Epilogue)+0xd5c0 in gemm.cuh:94 [16 hazards]
=========     and Read access at void gemm_tiled_kernel<float>(Tensor, Tensor, Tensor, Epilogue)+0xd5e0 in gemm.cuh:94 [32 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x88 in square_1d_kernel<float>(Tensor, Tensor, long long)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f0000000020
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at void gemm_tiled_kernel<float>(Tensor, Tensor, Tensor, Epilogue)+0x2c8 in gemm.cuh:93
=========     by thread (5,3,0) in block (2,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
STRANGE = """\
========= COMPUTE-SANITIZER
========= Something that nobody has seen yet at __global__ 0x123
=========     with details
=========     of its own
========= Invalid __global__ read of size 4 bytes
=========     in a form of the future
========= ERROR SUMMARY: 2 errors
"""
CLEAN = (
    "some words of the program\n========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
)
NO_RACE = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


def of_gpu(text: str) -> list[Any]:
    return tool_output.compute_sanitizer("tool", text, Memory([Argument("x", Placed(X))]))


def test_memcheck_is_read() -> None:
    (report,) = of_gpu(MEMCHECK)  # folded, and without the launch failure that follows
    assert report.count == 2
    assert report.what.startswith("out-of-bounds read of 4 bytes: element offset 35 of x, which ")
    (site,) = report.sites
    assert (site.function, Path(site.file).name, site.line) == (
        "square_1d_kernel<float>",
        "square.cu",
        27,
    )
    assert (site.block, site.thread) == ((1, 0, 0), (3, 0, 0))
    assert site.inner == "load<float> at elementwise.cuh:59"
    assert site.code == SOURCES["square.cu"][26].strip()


def test_older_memcheck_and_a_misaligned_access_are_read() -> None:
    (report,) = of_gpu(OLD_MEMCHECK)
    assert report.what == "misaligned write of 16 bytes: x[0, 1]"
    assert report.sites[0].function == "add_vector_kernel<float, float4, (int)4>"
    assert (Path(report.sites[0].file).name, report.sites[0].line) == ("add.cu", 68)
    assert report.sites[0].thread == (24, 0, 0)


def test_an_access_to_shared_memory_is_read() -> None:
    (report,) = of_gpu(SHARED)
    assert report.what == "out-of-bounds write of 4 bytes: shared memory at 0x880"
    assert (report.sites[0].line, report.sites[0].thread) == (91, (2, 1, 0))


def test_racecheck_is_read() -> None:
    (report,) = of_gpu(RACECHECK)
    assert report.what == "data race, write and read: shared memory"
    # An unrolled loop reads at many addresses of one line.
    assert [(s.role, s.line) for s in report.sites] == [("write", 91), ("read", 94)]
    assert report.count == 48


def test_initcheck_and_synccheck_are_read() -> None:
    (report,) = of_gpu(INITCHECK)
    assert report.what == "read of memory that nobody wrote of 4 bytes: x[1, 1]"
    assert report.sites[0].function == "square_1d_kernel<float>"
    (report,) = of_gpu(SYNCCHECK)
    assert report.what == "barrier: divergent thread(s) in block"
    assert (report.sites[0].line, report.sites[0].block) == (93, (2, 0, 0))


def test_what_cannot_be_read_is_shown() -> None:
    strange, future = of_gpu(STRANGE)
    assert strange.what == "Something that nobody has seen yet at __global__ 0x123"
    assert strange.raw == "with details\nof its own"
    assert future.what == "Invalid __global__ read of size 4 bytes"
    assert "in a form of the future" in "\n".join(future.lines())
    (launch,) = of_gpu(
        '========= Program hit cudaErrorX (error 1) due to "y" on CUDA API call to z.'
    )
    assert launch.what.startswith("Program hit cudaErrorX")


def test_no_reports_in_a_clean_run() -> None:
    assert of_gpu(CLEAN) == of_gpu(NO_RACE) == of_gpu("") == []


# ---- The sanitizers of g++ that a real run seldom shows ----


def test_reports_of_other_sanitizers_that_cannot_be_read_are_shown() -> None:
    text = "==1==ERROR: AddressSanitizer: odd-thing on address 0x10\nno stack at all\n==1==ABORTING"
    (report,) = tool_output.address("address", text, Memory())
    assert report.what == "odd-thing, which could not be read"
    assert "no stack at all" in report.raw
    text = "=====================\nWARNING: ThreadSanitizer: data race (pid=1)\n  odd\n============"
    (report,) = tool_output.thread("thread", text, Memory())
    assert "odd" in report.raw
    (report,) = tool_output.undefined("undefined", "x: runtime error: odd", Memory())
    assert "x: runtime error: odd" in report.raw


def test_a_crash_is_read() -> None:
    text = (
        "==7==ERROR: ThreadSanitizer: SEGV on unknown address 0x0008 (pc 0x7f bp 0x7f sp 0x7f)\n"
        "==7==The signal is caused by a WRITE memory access.\n"
        "    #0 void square_1d_kernel<float>(Tensor, Tensor, long long) /a/square.cu:28 (x.so+0x1)\n"
        "    #1 cuda_on_cpu::run_threads() /a/cuda_on_cpu_launch.h:56 (x.so+0x1)\n"
        "in kernel square_1d_kernel<C>, block (1, 0, 0) thread (7, 0, 0)\n"
    )
    (report,) = tool_output.thread("thread", text, Memory())
    assert report.what == "crash (SEGV), write at 0x0008"
    (site,) = report.sites
    assert (site.line, site.block, site.thread) == (28, (1, 0, 0), (7, 0, 0))


def test_addresses_are_told_in_tensor_terms() -> None:
    memory = Memory([Argument("x", Placed({**X, "strides": [9, 1]}))])
    memory.shared.append(SharedArray("tile", 0x1000, 128, 4, (4, 8)))
    base = X["address"]
    assert memory.text(base + 4 * (2 * 9 + 3)) == "x[2, 3]"
    assert "between the elements of the view" in memory.text(base + 4 * 8)
    assert memory.text(base - 4).startswith("element offset -1 of x")
    assert memory.text(0x1000 + 4 * 13) == "tile[1][5]"
    assert memory.text(0x1000 + 4 * 33) == "tile[4][1], outside of tile[4][8]"
    assert memory.text(0x99990000) == "at 0x99990000, which is near no tensor"


def test_names_of_functions_are_shortened() -> None:
    assert short_name("void f<float, (int)4>(Tensor<a, b>, long long)") == "f<float, (int)4>"
    assert short_name("f(int)::{lambda()#1}::operator()() const") == "f"
    assert short_name("operator()") == "operator"
    assert short_name("plain") == "plain"


def test_the_end_of_a_broken_process_is_no_finding_of_its_own() -> None:
    end = "========= Error: process didn't terminate successfully\n"
    assert [r.what for r in of_gpu(INITCHECK + end)] == [r.what for r in of_gpu(INITCHECK)]
    (report,) = of_gpu(end)  # alone, it is all there is to say
    assert report.what == "Error: process didn't terminate successfully"
