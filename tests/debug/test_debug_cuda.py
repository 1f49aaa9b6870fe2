"""debug on the CUDA side: a gallery of broken kernels, each caught by its tool with the right line.

A fault is an edit of one line in a copy of the three packages, run through the real command line.
Faults of different kernels share a copy, and a copy's commands one Python process: the processes
that the tools run in are what is tested, and take the time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compare.checking.implementations import unavailable
from compare.debugging.cuda import side as cuda_side
from compare.debugging.cuda import tool_output
from compare.debugging.cuda.findings import BEHIND
from compare.debugging.cuda.reports import Memory
from compare.ops import SPECS
from cuda_reference import _compilers, variants

needs_host = pytest.mark.skipif(
    "cuda-host" in unavailable(), reason=f"cuda-host: {unavailable().get('cuda-host')}"
)

PACKAGES = ("triton_kernels", "cuda_reference", "compare")
CSRC = "cuda_reference/csrc"


class Fault(NamedTuple):
    """An edit, the command that must notice, the tool that catches it, the words that it must say,
    and a part of the line of code that it must name."""

    group: int
    file: str
    old: str
    new: str
    command: str
    tool: str
    says: str
    line: str


FAULTS = {
    "bounds mask dropped": Fault(
        1,
        "square.cu",
        "i = global_thread();\n  if (i >= n) return;\n  const C v = load<C>(x, i);",
        "i = global_thread();\n  const C v = load<C>(x, i);",
        "square --impl cuda-host/1d --shape 5,7",
        "address",
        "out-of-bounds read of 4 bytes: element offset 35 of x",
        "const C v = load<C>(x, i);",
    ),
    "mask off by one": Fault(
        2,
        "square.cu",
        "row = first; row < rows;",
        "row = first; row <= rows;",
        "square --impl cuda-host/2d --shape 5,7",
        "address",
        "which would be [5, 0] (shape (5, 7)",
        "const C v = load<C>(x, row * columns + column);",
    ),
    "missing __syncthreads before the tiles are read": Fault(
        1,
        "gemm.cuh",
        "    __syncthreads();  // the tiles are complete\n",
        "",
        "gemm_bias_act --impl cuda-host/tiled --shape 16,16,32",
        "all",
        "data race, write and read: a_tile[",
        "sum = fused(a_tile[row][k], b_tile[k][column], sum);",
    ),
    "missing __syncthreads before the tiles are overwritten": Fault(
        2,
        "gemm.cuh",
        "    __syncthreads();  // nobody reads them any more\n",
        "",
        "gemm_bias_act --impl cuda-host/tiled --shape 16,16,32",
        "thread",
        "no __syncthreads() between",
        "a_tile[row][column] = in_a ?",
    ),
    "missing __syncthreads, of what functions gave": Fault(
        2,
        "gemm_f16x3.cuh",
        "    __syncthreads();  // nobody reads them any more\n",
        "",
        "gemm_bias_act --dtype float32 --impl cuda-host/wmma --shape 33,65,70"
        " --arg precision=f16x3",
        "initcheck",
        "overwrites what another thread read, nothing orders them: a_high[0][0]",
        "high = __float2half_rn(scaled);",
    ),
    "race on an output": Fault(
        1,
        "relu_scale.cu",
        "store<C>(out, out.offset(i), fused(relu(a), value<C>(scale), b));",
        "store<C>(out, out.offset(i / 2), fused(relu(a), value<C>(scale), b));",
        "relu_scale_add --shape 5,7 --impl cuda-host",
        "initcheck",
        "two threads write different values, nothing orders them: out[0, 0]",
        "store<C>(out, out.offset(i / 2)",
    ),
    "misaligned vector load": Fault(
        1,
        "rungs.cuh",
        "if (!at.aligned(sizeof(V))) return",
        "if (false) return",
        "add --impl cuda-host/f32x4 --layout misaligned --shape 5,7",
        "undefined",
        "misaligned access to float4: x[0, 0] is no multiple of 16 bytes",
        "in[k].access[a] = reinterpret_cast<const V*>(static_cast<const T*>(at.in[k]) + start)[a];",
    ),
    "uninitialised shared memory": Fault(
        2,
        "gemm.cuh",
        "b_tile[row][column] = in_b ? load<C>(b, (k0 + row) * b.stride[0] + n * b.stride[1]) : "
        "C(0);",
        "if (in_b) b_tile[row][column] = load<C>(b, (k0 + row) * b.stride[0] + n * b.stride[1]);",
        "gemm_bias_act --impl cuda-host/tiled --shape 16,16,10",
        "initcheck",
        "shared memory read before it was written: b_tile[10][0]",
        "sum = fused(a_tile[row][k], b_tile[k][column], sum);",
    ),
    "int32 overflow in an index": Fault(
        1,
        "square.cu",
        "const C v = load<C>(x, row * columns + column);",
        "const int pitch = 1 << 26, at = static_cast<int>(row) * pitch;"
        " const C v = load<C>(x, at / (gridDim.x * pitch) * columns + column);",
        "square --impl cuda-host/2d --shape 33,7",
        "undefined",
        "signed integer overflow: 32 * 67108864 cannot be represented in type 'int'",
        "at = static_cast<int>(row) * pitch;",
    ),
    "tail dropped": Fault(
        1,
        "relu_scale.cu",
        "  const Tensor xt = *x, ot = *out;\n"
        "  WITH_FLOATING_TYPE(out->dtype, LAUNCH(relu_scale_kernel<C>, blocks_for(n),",
        "  const Tensor xt = *x, ot = *out;\n"
        "  WITH_FLOATING_TYPE(out->dtype, LAUNCH(relu_scale_kernel<C>, n / THREADS,",
        "relu_scale --shape 5,100 --impl cuda-host",
        "values",
        "never stored by any thread: 244 of them",
        "",
    ),
    "wrong stride": Fault(
        1,
        "gemm.cuh",
        "sum = fused(load<C>(a, m * a.stride[0] + k * a.stride[1]),",
        "sum = fused(load<C>(a, m * a.stride[1] + k * a.stride[0]),",
        "gemm_bias_act --impl cuda-host --shape 16,16,16",
        "values",
        "load a[0:16, 13] 16×",
        "store<C>(out, m * out.stride[0] + n * out.stride[1], epilogue.apply<C>(sum, m, n));",
    ),
    "bias by row": Fault(
        2,
        "gemm.cuh",
        "load<C>(bias, n * bias.stride[0])",
        "load<C>(bias, m * bias.stride[0])",
        "gemm_bias_act --impl cuda-host --shape 16,16,16 --arg bias=true",
        "values",
        "load bias[13] 1×",
        "store<C>(out, m * out.stride[0] + n * out.stride[1], epilogue.apply<C>(sum, m, n));",
    ),
    "beta ignored": Fault(
        2,
        "gemm.cuh",
        "if (has_c) pre += value<C>(beta) * load<C>",
        "if (has_c) pre += load<C>",
        "gemm_bias_act --impl cuda-host --shape 16,16,16 --arg c=column --arg beta=2",
        "values",
        "load c[6, 0] 1×",
        "store<C>(out, m * out.stride[0] + n * out.stride[1], epilogue.apply<C>(sum, m, n));",
    ),
    "K tail not masked": Fault(
        2,
        "gemm.cuh",
        "const bool in_a = m < M && k0 + column < K;",
        "const bool in_a = m < M;",
        "gemm_bias_act --impl cuda-host/tiled --layout padded --shape 16,16,20",
        "initcheck",
        "between the elements of the view",
        "a_tile[row][column] = in_a ?",
    ),
}
# The cases are float32: where a copy's dispatch would compile a kernel once for each type, it
# compiles the same one, once.
OTHER_TYPES = {
    "elementwise.cuh": ("using C = double;", "using C = u64;"),
    "rungs.cuh": ("(F16, __half,", "(BF16, __nv_bfloat16,", "(F64, double,"),
}
# The tools of a command, where they are more than the one that catches the fault: who stored a
# wrong value is initcheck's knowledge; one fault is looked into with all tools, the default.
TOOLS = {"values": ["--tool", "values,initcheck"], "all": []}

SESSION = """
import json, os, runpy, subprocess, sys, tempfile
from types import SimpleNamespace
from typer.testing import CliRunner
from compare.cli import app
from compare.debugging.cuda import process, side

def run(command, **options):
    # A fork has torch and the packages loaded; only a sanitizer's runtime wants a fresh process.
    if "LD_PRELOAD" in options["env"]:
        return subprocess.run(command, **options)
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                sys.argv = command[2:]
                del sys.modules[command[2]]
                runpy.run_module(command[2], run_name="__main__")
                status = 0
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return subprocess.CompletedProcess(command, status, "", said.read().decode())

side.subprocess = SimpleNamespace(run=run)
for words in json.load(sys.stdin):
    done = CliRunner().invoke(app, words)
    print(json.dumps([done.exit_code, done.output]), flush=True)
"""


class Done(NamedTuple):
    status: int
    output: str
    report: dict[str, Any]


def session(where: Path, commands: list[list[str]]) -> list[tuple[int, str]]:
    """Commands of `python -m compare` in a copy: (exit status, output) each."""
    environment = {**os.environ, "PYTHONPATH": str(where)}
    environment |= {"COLUMNS": "200", "NO_COLOR": "1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    ran = subprocess.run(
        [sys.executable, "-c", SESSION],
        cwd=where,
        env=environment,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [tuple(json.loads(line)) for line in ran.stdout.splitlines()]


@pytest.fixture(scope="module")
def gallery(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """What the command line said of every fault."""

    def play(group: int) -> dict[str, Done]:
        where = tmp_path_factory.mktemp(f"copy{group}")
        for package in PACKAGES:
            ignore = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(root / package, where / package, ignore=ignore)
        for file, lines in OTHER_TYPES.items():
            source = where / CSRC / file
            text = source.read_text()
            for line in lines:
                assert line in text, f"{file}: no longer {line!r}"
                text = text.replace(line, re.sub(r"\w+(?=[;,]$)", "float", line))
            source.write_text(text)
        faults = {name: fault for name, fault in FAULTS.items() if fault.group == group}
        commands = []
        for number, fault in enumerate(faults.values()):
            source = where / CSRC / fault.file
            text = source.read_text()
            assert text.count(fault.old) == 1, f"{fault.file}: no longer one {fault.old!r}"
            source.write_text(text.replace(fault.old, fault.new))
            tools = TOOLS.get(fault.tool, ["--tool", fault.tool])
            words = ["debug", *fault.command.split(), *tools]
            commands.append([*words, "--json", str(where / f"{number}.json")])
        found = {}
        for number, (name, (status, output)) in enumerate(zip(faults, session(where, commands))):
            report = where / f"{number}.json"
            written = json.loads(report.read_text()) if report.exists() else {}
            found[name] = Done(status, output, written)
        return found

    tmp_path_factory.getbasetemp()  # by one thread: two would both make it
    groups = sorted({fault.group for fault in FAULTS.values()})
    with ThreadPoolExecutor(2) as pool:
        return {name: done for found in pool.map(play, groups) for name, done in found.items()}


@needs_host
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught_with_its_line(name: str, gallery: dict[str, Done]) -> None:
    fault, done = FAULTS[name], gallery[name]
    if "address randomisation" in done.output:
        pytest.skip("ThreadSanitizer cannot live with this kernel's address randomisation")
    assert done.status == 1, done.output
    said = re.sub(r"\s+", " ", done.output)
    assert fault.says in said, done.output
    assert len(done.output.splitlines()) <= 40 + BEHIND, done.output
    steps = {step["tool"]: step for step in done.report["steps"]}
    tool = "thread" if fault.tool == "all" else fault.tool
    if fault.tool == "all":
        assert set(steps) == set(cuda_side.HOST_TOOLS)
        assert "undefined ok, address ok, thread 2 found" in said
        assert "with the threads in reverse order other values are wrong" in said
    sites = [site for report in steps[tool]["reports"] for site in report["sites"]]
    if fault.tool == "values":
        assert steps["values"]["wrong"], done.output
        sites = [steps["initcheck"]["stored_by"]] if steps["initcheck"]["stored_by"] else []
    else:
        assert sites, done.output
    if fault.line:
        assert any(fault.line in site["code"] for site in sites), sites
        assert all(site["thread"] is not None for site in sites), sites
        assert all(Path(site["file"]).name == fault.file for site in sites), sites


# ---- No false alarms ----

HEALTHY = """
import json, sys
from compare.cases import Case
from compare.debugging.cuda.process import Job, run
from compare.ops import SPECS
from cuda_reference import variants

steps, dtypes, report = sys.argv[1].split(","), sys.argv[2].split(","), sys.argv[3]
shapes = {2: [3, 133], 3: [17, 17, 18]}  # a block or tile and what is left of one
ran = 0
for spec in SPECS.values():
    for variant in (None, *variants(spec.name)):
        for dtype in dtypes:
            case = {"op": spec.name, "dtype": dtype, "shape": shapes[len(spec.default_shape)]}
            parts = variant == "wmma" and dtype == "float32" and "precision" in spec.options
            for more in [{"precision": p} for p in ("tf32x3", "f16x3")] if parts else [{}]:
                case["options"] = {**spec.default_options, **more}
                if not spec.takes("cuda", variant, Case(**{**case, "shape": tuple(case["shape"])})):
                    continue
                job = {"case": case, "mode": "cuda-host", "variant": variant, "steps": steps}
                run(Job({**job, "report": report}))
                ran += 1
print("ran", ran)
"""


@needs_host
@pytest.mark.parametrize(
    ("steps", "dtypes"),
    [
        ("values,initcheck,undefined", "float32,float16"),
        ("address", "float16"),  # in all dtypes by `make sanitize`
        ("thread", "float32"),
    ],
)
def test_healthy_kernels_are_left_in_peace(steps: str, dtypes: str, tmp_path: Path) -> None:
    """Every op in every CUDA variant of the dtypes, under every tool: no report."""
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    if steps in ("address", "thread"):
        try:
            environment |= _compilers.sanitizer_environment(steps)
        except _compilers.BuildError as error:
            pytest.skip(str(error))
    report = tmp_path / "report.jsonl"
    ran = subprocess.run(
        [sys.executable, "-c", HEALTHY, steps, dtypes, str(report)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("ThreadSanitizer cannot live with this kernel's address randomisation")
    assert ran.returncode == 0, ran.stderr
    count = int(ran.stdout.split()[-1])
    every = sum(1 + len(variants(op)) for op in SPECS)
    assert 2 * count > every * len(dtypes.split(","))  # most variants are made for one of the two
    events = [json.loads(line) for line in report.read_text().splitlines()]
    told = [e for e in events if e["event"] in ("finding", "error", "worst", "outside")]
    assert not told, told[:3]
    assert not [e for e in events if e["event"] == "values" and e["problem"]]
    assert sum(e["event"] == "end" for e in events) == count * len(steps.split(","))
    last = steps.split(",")[-1]
    assert not getattr(tool_output, last)(last, ran.stderr, Memory()), ran.stderr
    if last == "undefined":  # and initcheck in both orders
        assert sum(e["event"] == "launch" for e in events) == 3 * count


# ---- The command line ----


def debug(*words: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    from compare.cli import app

    done = CliRunner().invoke(app, ["debug", *words], env={"COLUMNS": "300"})
    return done.exit_code, re.sub(r"[\s│]+", " ", done.output)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["add", "--side", "cude"], "--side cude: triton or cuda"),
        (["add", "--side", "triton", "--impl", "cuda-host"], "exclude each other"),
        (["add", "--impl", "triton", "--tool", "address"], "--tool is for the CUDA side"),
        (["add", "--side", "cuda", "--tool", "valgrind"], "--tool valgrind: one of values"),
        (["add", "--side", "cuda", "--variant", "f99"], "add has f32, f32x4"),
        (["add", "--impl", "cuda-host/f16", "--variant", "f32"], "exclude each other"),
        (["add", "--side", "cuda", "--variant", "f16", "--dtype", "float32"], "not made for this"),
        (["add", "--side", "cuda", "--program", "0,0,0"], "for the Triton side"),
        (["add", "--side", "cuda", "--shape", "3,x"], "sizes with commas"),
    ],
)
def test_wrong_usage(words: list[str], says: str) -> None:
    status, output = debug(*words)
    assert status == 2, output
    assert says in output


def test_a_tool_that_is_not_here_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_side, "unavailable", lambda: {"cuda-gpu": "no GPU, they say"})
    status, output = debug("add", "--side", "cuda", "--tool", "memcheck")
    assert status == 2
    assert "--tool memcheck: no GPU, they say; here there is values, initcheck" in output
    monkeypatch.setattr(cuda_side, "unavailable", lambda: {"cuda-host": "no compiler"})
    monkeypatch.setattr(cuda_side, "compute_sanitizer", lambda: None)
    status, output = debug("add", "--impl", "cuda-gpu", "--tool", "racecheck")
    assert status == 2
    assert "compute-sanitizer is not on PATH" in output


@needs_host
def test_a_healthy_kernel_passes_and_is_written_down(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = ["square", "--impl", "cuda-host/2d", "--shape", "5,7", "--tool", "values,initcheck"]
    status, output = debug(*words, "--json", str(file))
    assert status == 0, output
    assert "nothing wrong found" in output
    assert "on the CPU: values ok, initcheck ok" in output
    written = json.loads(file.read_text())
    assert written["passed"]
    ran = {step["tool"] for step in written["steps"]}
    assert ran == {"values", "initcheck"}


MEMCHECK = """\
========= Invalid __global__ read of size 4 bytes
=========     at square_1d_kernel<float>(Tensor, Tensor, long long)+0x1b0 in square.cu:29
=========     by thread (3,0,0) in block (1,0,0)
=========     Address 0x7f000000008c is out of bounds
========= ERROR SUMMARY: 1 error
"""


def test_compute_sanitizer_is_run_on_one_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the program, which prints a report where NVIDIA's would run the case."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $@" >> {tmp_path}/ran\n'
        f'case "$2" in\n memcheck) cat {tmp_path}/memcheck;;\n synccheck) exit 3;; esac\n'
    )
    program.chmod(0o755)
    (tmp_path / "memcheck").write_text(MEMCHECK)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(cuda_side, "unavailable", lambda: {"cuda-host": "not now"})
    words = ["square", "--impl", "cuda-gpu/1d", "--shape", "5,7"]
    status, output = debug(*words, "--tool", "memcheck,synccheck")
    assert status == 1
    assert "memcheck: out-of-bounds read of 4 bytes" in output
    assert "square.cu:29 in square_1d_kernel<float>: if (i >= n) return;" in output
    assert "by block (1, 0, 0) thread (3, 0, 0)" in output
    assert "synccheck: the process ended with status 3" in output
    assert "on the GPU: memcheck 1 found, synccheck 1 found" in output
    first, second = (tmp_path / "ran").read_text().splitlines()
    assert first.startswith("1 --tool memcheck --show-backtrace device --report-api-errors no")
    assert second.startswith("1 --tool synccheck --show-backtrace device")
    assert '"mode": "cuda-gpu", "variant": "1d", "steps": ["gpu"]' in first
