"""python -m compare doctor: every fault planted once is named, with its remedy and exit status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from compare.checking.implementations import unavailable
from compare.cli import app
from compare.doctor import diagnosis, installation, machine
from compare.doctor.installation import TRIED, Finding
from compare.timing import nvml
from cuda_reference import _compilers, _shipped

Check = Callable[[], Iterator[Finding]]
needs_compiler = pytest.mark.skipif("cuda-host" in unavailable(), reason="no host target here")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None of the settings that the tests are about, and caches of our own."""
    for name in [*os.environ]:
        if name.startswith(("CROSSCHECK_", "TRITON_")):
            monkeypatch.delenv(name)
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "TORCH_EXTENSIONS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path / "libraries"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def one(check: Check, name: str) -> Finding:
    """The one finding of the check that has the name and is not ok; else the one that is."""
    found = [f for f in check() if f.name == name]
    (finding,) = [f for f in found if f.grade != "ok"] or found
    return finding


def child(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "compare", *words]
    environment = {**os.environ, "TERM": "dumb", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


# ---- the page ----


@needs_compiler
def test_a_healthy_machine(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = CliRunner().invoke(app, ["doctor", "--json", str(report)])
    assert done.exit_code == 0, done.output
    assert re.search(r"no problems, .*: python -m compare check can run here", done.output)
    assert re.search(rf"ok +torch +{re.escape(torch.__version__)}$", done.output, re.M)
    found = json.loads(report.read_text())
    assert found["passed"] is True
    listed = {f["name"]: f["grade"] for findings in found["findings"].values() for f in findings}
    names = "python torch triton numpy interpreter GPU nvcc ninja sanitizers cuobjdump"
    assert set(names.split()) | {"C++ compiler", "library cache", "triton_kernels"} <= set(listed)
    if not torch.cuda.is_available():
        assert listed["GPU"] == "ok"  # a fact, not a fault


def test_a_problem_gives_status_1_and_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {"Versions": (lambda: iter([Finding("x", "problem", "is broken", "mend x")]),)}
    monkeypatch.setattr(diagnosis, "CHECKS", checks)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "→ mend x" in done.output
    assert "1 problem, no warnings: python -m compare check cannot" in done.output


def test_a_warning_gives_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {"Versions": (lambda: iter([Finding("x", "warning", "is odd", "mend x")]),)}
    monkeypatch.setattr(diagnosis, "CHECKS", checks)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    assert "→ mend x" in done.output


def test_a_check_that_throws_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def shaky() -> Iterator[Finding]:
        yield Finding("first", "ok", "kept")
        raise RuntimeError("oh")

    monkeypatch.setattr(diagnosis, "CHECKS", {"Versions": (shaky,)})
    kept, thrown = diagnosis.diagnose()["Versions"]
    assert kept.name == "first"
    assert (thrown.grade, thrown.name) == ("problem", "shaky")
    assert "RuntimeError: oh" in thrown.says
    assert thrown.remedy


def test_json_that_cannot_be_written_is_usage() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json", "no/such/folder/x.json"])
    assert done.exit_code == 2
    assert "cannot write there" in done.output


# ---- missing packages ----


@pytest.mark.parametrize("package", ["torch", "triton", "numpy", "typer", "rich"])
def test_without_a_package_it_still_prints_its_page(
    package: str, tmp_path: Path, root: Path
) -> None:
    stub = tmp_path / "stubs" / package
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text(f"raise ImportError('no {package} today')\n")
    path = f"{stub.parent}{os.pathsep}{root}"
    report = tmp_path / "report.json"
    done = child("doctor", "--json", str(report), PYTHONPATH=path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert f"ImportError: no {package} today" in done.stdout
    assert re.search(rf"→ python -m pip install --force-reinstall '?{package}", done.stdout)
    assert "could not be checked" not in done.stdout
    named = {f["name"] for fs in json.loads(report.read_text())["findings"].values() for f in fs}
    assert {"ninja", "C++ compiler", "library cache", "triton_kernels"} <= named
    if package == "triton":
        done = child("check", "add", PYTHONPATH=path)
        assert done.returncode == 1
        assert re.search(r"cannot start: .*no triton today", done.stderr)
        assert "python -m compare doctor" in done.stderr
        assert child("doctor", "--nonsense", PYTHONPATH=path).returncode == 2


# ---- versions ----


def test_facts_has_the_table_of_tried_versions(root: Path) -> None:
    section = (
        (root / "docs" / "FACTS.md").read_text().split("## Versions tried")[1].split("\n## ")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    written = {(row[0], row[1], row[2].removesuffix(" CPU")) for row in rows[1:]}
    assert written == set(TRIED)


def test_untried_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(installation.versions, "tried together").grade == "ok"
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    finding = one(installation.versions, "tried together")
    assert finding.grade == "warning"
    assert re.search(
        r"pip install triton==3\.\d\.\d numpy==2\.\S+ torch==2\.1\d\.0$", finding.remedy
    )


def test_the_known_bad_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy
    import triton

    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr(numpy, "__version__", "2.4.6")
    finding = one(installation.versions, "known-bad pair")
    assert finding.grade == "warning"
    assert "'numpy<2.4'" in finding.remedy
    monkeypatch.setattr(numpy, "__version__", "2.3.5")
    assert "known-bad pair" not in {f.name for f in installation.versions()}


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    finding = one(installation.versions, "python")
    assert finding.grade == "problem"
    assert "3.11" in finding.remedy


def test_an_interpreter_that_computes_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton_kernels

    assert one(installation.interpreter, "interpreter").grade == "ok"
    monkeypatch.setattr(triton_kernels, "gemm_bias_act", lambda a, b: torch.zeros(2, 2))
    assert one(installation.interpreter, "interpreter").grade == "problem"


# ---- GPU ----


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, cuda: str) -> None:
    """A torch that sees one H200, and nvidia-smi that agrees."""
    properties = namedtuple("properties", "name total_memory major minor")("H200", 2**37, 9, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=None: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(machine, "_nvidia_smi", lambda: "580.1")
    monkeypatch.setattr(nvml, "missing", lambda: "")


def tool(folder: Path, name: str, says: str) -> Path:
    """A program that only prints."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


def test_nvcc_of_another_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvcc", "Cuda compilation tools, release 12.4, V12.4.1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    pretend_gpu(monkeypatch, "12.4")
    assert one(machine.gpu, "nvcc").grade == "ok"
    assert "128 GiB, compute capability 9.0" in one(machine.gpu, "GPU").says
    assert one(machine.gpu, "driver").says == "580.1"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    finding = one(machine.gpu, "nvcc")
    assert finding.grade == "warning"
    assert finding.remedy == "set CUDA_HOME to a toolkit of CUDA 13.0"


def test_a_gpu_without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise _compilers.BuildError("nvcc not found: install it")

    monkeypatch.setattr(_compilers, "_nvcc", missing)
    pretend_gpu(monkeypatch, "13.0")
    finding = one(machine.gpu, "nvcc")
    assert finding.grade == "warning"
    assert "CUDA_HOME" in finding.remedy
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert one(machine.gpu, "nvcc").grade == "ok"


def test_clocks_that_bench_cannot_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, "13.0")
    assert one(machine.gpu, "NVML").grade == "ok"
    for reason, remedy in (
        ("the package nvidia-ml-py is not installed", "pip install '?nvidia-ml-py"),
        ("NVML: NVML Shared Library Not Found", r"libnvidia-ml\.so\.1"),
    ):
        monkeypatch.setattr(nvml, "missing", lambda reason=reason: reason)
        finding = one(machine.gpu, "NVML")
        assert finding.grade == "warning"
        assert finding.says.startswith(reason)
        assert re.search(remedy, finding.remedy)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "NVML" not in [finding.name for finding in machine.gpu()]


def test_a_gpu_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", "580.159.04")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finding = one(machine.gpu, "GPU")
    assert finding.grade == "warning"
    assert "580.159.04" in finding.says
    assert "built for CUDA" in finding.remedy
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert one(machine.gpu, "GPU").grade == "ok"


def test_arch_list(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCH_CUDA_ARCH_LIST"
    monkeypatch.setenv(name, "Hopper")
    finding = one(machine.gpu, name)
    assert finding.grade == "warning"
    assert "'Hopper'" in finding.says
    assert "8.0;9.0a+PTX" in finding.remedy
    pretend_gpu(monkeypatch, "13.0")
    for value in ("9.0", "9.0a", "8.0;9.0", "8.6+PTX"):
        monkeypatch.setenv(name, value)
        assert one(machine.gpu, name).grade == "ok", value
    for value in ("8.0", "10.0+PTX", "10.0a", "8.0;12.0+PTX", "9.2"):
        monkeypatch.setenv(name, value)
        finding = one(machine.gpu, name)
        assert finding.grade == "problem", value
        assert "add 9.0" in finding.remedy


# ---- tools ----


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = one(machine.tools, "C++ compiler")
    assert finding.grade == "problem"
    assert "install g++" in finding.remedy


@pytest.mark.parametrize("chosen", ["no-such-compiler", "g++ 'open quote"])
def test_bad_cxx(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", chosen)
    finding = one(machine.tools, "C++ compiler")
    assert finding.grade == "problem"
    assert "unset CXX" in finding.remedy


def test_a_compiler_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tool(tmp_path, "broken", "broken 1.0")
    program.write_text("#!/bin/sh\necho 'error: no libstdc++' >&2\nexit 1\n")
    monkeypatch.setenv("CXX", str(program))
    finding = one(machine.tools, "C++ compiler")
    assert finding.grade == "problem"
    assert "error: no libstdc++" in finding.remedy


@needs_compiler
def test_no_sanitizers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A g++ that links everything but -fsanitize=thread."""
    program = tmp_path / "g++"
    real = " ".join(_compilers._host_compiler())
    refuse = "*=thread*) echo cannot find -ltsan >&2; exit 1;;"
    program.write_text(f'#!/bin/sh\ncase "$*" in {refuse} esac\n{real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    finding = one(machine.tools, "sanitizers")
    assert finding.grade == "warning"
    assert "cannot use thread: cannot find -ltsan" in finding.says
    assert "libtsan" in finding.remedy


@pytest.mark.parametrize(
    ("name", "function"), [("ninja", "_ninja"), ("CUDA headers", "_cuda_headers")]
)
def test_missing_parts(name: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise _compilers.BuildError("not found: install it")

    monkeypatch.setattr(machine, "_link", lambda *words: "")  # which takes its time
    monkeypatch.setattr(_compilers, function, missing)
    assert one(machine.tools, name).grade == "problem"
    assert "pip install" in one(machine.tools, name).remedy
    monkeypatch.setattr(_compilers, function, lambda: "/no/such/file")
    assert "--force-reinstall" in one(machine.tools, name).remedy


def test_no_cuobjdump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_link", lambda *words: "")  # which takes its time
    assert one(machine.tools, "cuobjdump").grade == "ok"
    monkeypatch.setattr(_compilers, "_package_folders", lambda package: [tmp_path])
    assert one(machine.tools, "cuobjdump").grade == "warning"
    assert "wheel" in one(machine.tools, "cuobjdump").remedy


# ---- caches ----


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(file))
    finding = one(machine.caches, "library cache")
    assert finding.grade == "problem"
    assert finding.remedy == "set CUDA_REFERENCE_CACHE to a folder of your own"
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(shared))
    finding = one(machine.caches, "library cache")
    assert finding.grade == "problem"
    assert "others can write there" in finding.says
    shared.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: Path(path) != shared)  # root may write
        finding = one(machine.caches, "library cache")
    assert finding.grade == "warning"
    assert "libraries that it lacks cannot be built" in finding.says
    assert finding.remedy == "set CUDA_REFERENCE_CACHE to a folder that can be written"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(file / "below"))
    finding = one(machine.caches, "Triton's cache")
    assert finding.grade == ("problem" if torch.cuda.is_available() else "warning")
    assert "TRITON_CACHE_DIR" in finding.remedy


def test_what_killed_builds_left(tmp_path: Path) -> None:
    killed, running = tmp_path / "libraries" / "build-old", tmp_path / "libraries" / "build-new"
    lock = tmp_path / "cache" / "torch_extensions" / "py311_cpu" / "mine" / "lock"
    for folder in (killed, running, lock.parent):
        folder.mkdir(parents=True)
    (tmp_path / "libraries" / "add-host-1.so").write_bytes(b"x" * 2_000_000)
    (running / "add.log").touch()
    lock.touch()
    os.utime(running, (1e9, 1e9))  # the compiler writes to a file in it
    assert "1 libraries, 2 MB" in one(machine.caches, "library cache").says
    for path in (killed, lock):
        os.utime(path, (1e9, 1e9))
    assert one(machine.caches, "library cache").grade == "warning"
    assert one(machine.caches, "library cache").remedy == f"rm -r {killed}"
    assert one(machine.caches, "torch extensions").remedy == f"rm -r {lock}"


# ---- settings and the import name ----


@pytest.mark.parametrize(
    ("name", "value", "grade", "remedy"),
    [
        ("TRITON_INTERPRET", "1", "ok", ""),
        ("TRITON_INTERPRET", "true", "warning", "1 to interpret"),
        ("CROSSCHECK_THREAD_ORDER", "reverse", "ok", ""),
        ("CROSSCHECK_THREAD_ORDER", "backwards", "warning", "reverse, or unset it"),
        ("CROSSCHECK_SANITIZE", "memory", "warning", "unset it"),
        ("CROSSCHECK_SANITIZE", "thread", "problem", "--sanitize thread"),
        ("CROSSCHECK_TREAD_ORDER", "reverse", "warning", "CROSSCHECK_THREAD_ORDER"),
        ("CUDA_HOME", "/no/such/folder", "warning", "unset CUDA_HOME"),
        ("CUDA_REFERENCE_LIBRARIES", "/no/such/folder", "problem", "name a folder that is there"),
        ("CUDA_REFERENCE_LIBRARIES", "/usr", "problem", "python -m cuda_reference build"),
    ],
)
def test_settings(
    name: str, value: str, grade: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    finding = one(installation.settings, name)
    assert finding.grade == grade
    assert remedy in finding.remedy


def test_prebuilt_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_REFERENCE_LIBRARIES", "/some/folder")
    monkeypatch.setattr(_shipped, "serves", lambda target: True)
    finding = one(installation.settings, "CUDA_REFERENCE_LIBRARIES")
    assert (finding.grade, finding.says) == ("ok", "/some/folder: libraries for host and cuda")


def test_every_setting_of_ours_is_known(root: Path) -> None:
    """A new CROSSCHECK_ variable must be judged here too."""
    sources = [
        p for d in ("compare", "cuda_reference", "triton_kernels") for p in (root / d).rglob("*")
    ]
    text = "".join(p.read_text() for p in sources if p.suffix in (".py", ".h", ".cuh", ".cu"))
    read = set(re.findall(r"\"(CROSSCHECK_\w+[A-Z])\"", text))
    assert read
    assert read <= set(installation.SETTINGS)


def test_another_distribution_of_the_same_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert one(installation.import_name, "triton_kernels").grade == "ok"
    info = tmp_path / "upstream_kernels-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: upstream_kernels\nVersion: 1.0.0\n"
    )
    (info / "top_level.txt").write_text("triton_kernels\n")
    (info / "RECORD").write_text("triton_kernels/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finding = one(installation.import_name, "triton_kernels")
    assert finding.grade == "warning"
    assert "the distribution upstream_kernels" in finding.says
    assert "pip uninstall upstream_kernels" in finding.remedy


def test_another_package_first_on_the_path(tmp_path: Path, root: Path) -> None:
    other = tmp_path / "other" / "triton_kernels"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("def matmul(): ...\n")
    for order, status in (([other.parent, root], 1), ([root, other.parent], 0)):
        path = os.pathsep.join(map(str, order))
        command = [sys.executable, "-P", "-m", "compare", "doctor"]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        flat = " ".join(done.stdout.split())
        assert done.returncode == status, done.stdout + done.stderr
        says = f"import triton_kernels gets {other}" if status else f"also provided by {other}"
        assert says in flat
        assert f"take {other.parent} off PYTHONPATH" in flat
