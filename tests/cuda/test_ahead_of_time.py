"""Libraries built ahead of time: making them, using them with no compiler, refusing wrong ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
import torch
from cached import needs_host_target, needs_nvcc

from cuda_reference import BuildError, __main__, _build, _compilers, _shipped

STEMS = sorted(source.stem for source in _compilers.CSRC.glob("*.cu"))
USE_SQUARE = (
    "import torch, cuda_reference\n"
    "print(cuda_reference.square(torch.tensor([3.0, -4.0])).tolist())\n"
)


@pytest.fixture(autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for these tests, no settings, and no libraries packaged in this checkout."""
    cache = tmp_path_factory.getbasetemp() / "ahead-of-time-cache"
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(cache))
    for name in ("CXX", "CROSSCHECK_SANITIZE", "CUDA_REFERENCE_LIBRARIES", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_shipped, "PACKAGED", cache / "nowhere")


@pytest.fixture
def host_libraries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with square for the host target."""
    folder = tmp_path / "libraries"
    assert __main__.main(["build", "--target", "host", "--out", str(folder), "square"]) == 0
    capsys.readouterr()
    return folder


@pytest.fixture
def no_compiler(
    host_libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """From here on there is no compiler, no ninja and no earlier build."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "ninja", None)
    _build._load.cache_clear()
    yield
    _build._load.cache_clear()


def run_without_compiler(
    tmp_path: Path, program: str, package: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    where = package or _compilers.CSRC.parent.parent
    environment = {
        **os.environ,
        "PATH": str(tmp_path / "no-programs"),
        "CUDA_HOME": str(tmp_path / "no-toolkit"),
        "CUDA_REFERENCE_CACHE": str(tmp_path / "no-cache"),
        **variables,
    }
    return processes.python(where, "-c", program, environment=environment)


def edit_record(
    folder: Path, stem: str = "square", target: str = "host", **changes: object
) -> None:
    file = folder / f"{stem}-{target}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# ---- making ----


@needs_host_target
def test_build_says_what_it_does_and_leaves_only_whole_things(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    command = ["build", "--target", "host", "--out", str(folder), "square", "relu_scale"]
    assert __main__.main(command) == 0
    first, *lines, summary, use = capsys.readouterr().out.splitlines()
    assert first.startswith("building 2 libraries for host with ")
    assert [line.split()[0] for line in lines] == ["[1/2]", "[2/2]"]
    named = {line.split()[1] for line in lines}
    assert {name.rsplit("-", 1)[0] for name in named} == {"relu_scale-host", "square-host"}
    assert re.match(r"2 of 2 libraries, \d\.\d MB", summary)
    assert use == f"to use them: CUDA_REFERENCE_LIBRARIES={folder}"
    records = {"relu_scale-host.json", "square-host.json"}
    assert {path.name for path in folder.iterdir()} == named | records
    record = json.loads((folder / "square-host.json").read_text())
    assert record["library"] in named
    assert record["architectures"] == []

    old = folder / "square-host-0123456789ab.so"  # of an earlier build
    old.write_text("")
    assert __main__.main(command) == 0
    assert {path.name for path in folder.iterdir()} == named | records


@needs_host_target
def test_a_source_that_does_not_build_is_told_and_the_others_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_sources(sources, target, toolchain):  # type: ignore[no-untyped-def]
        if "add" in sources:
            raise BuildError("could not build add.cu")
        return real(sources, target, toolchain)

    real = _build.compile_sources
    monkeypatch.setattr(_build, "compile_sources", compile_sources)
    command = ["build", "--target", "host", "--out", str(tmp_path / "out"), "add", "square"]
    assert __main__.main(command) == 1
    said = capsys.readouterr()
    assert "1 of 2 libraries" in said.out
    assert "to use them" not in said.out
    assert "add: could not build add.cu" in said.err
    assert not (tmp_path / "out" / "add-host.json").exists()
    assert (tmp_path / "out" / "square-host.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "the cuda target needs --arch, for example --arch 80,90"),
        (["--arch", "80,Hopper"], "'Hopper' is no architecture; write 80,90"),
        (["--arch", ""], "'' is no architecture"),
        (["--arch", "9"], "'9' is no architecture"),
        (["--target", "host", "--arch", "80"], "--arch is for the cuda target only"),
        (["--target", "rocm"], "invalid choice: 'rocm'"),
        (["--target", "host", "cube"], "there is no source 'cube'; there are act_backward, "),
    ],
)
def test_wrong_usage(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        __main__.main(["build", "--out", str(tmp_path / "out"), *words])
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_wrong_surroundings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    command = ["build", "--target", "host", "--out"]
    with pytest.raises(SystemExit, match="2"):
        __main__.main([*command, str(tmp_path / "file")])
    assert "cannot be written: File exists" in capsys.readouterr().err
    monkeypatch.setenv("CROSSCHECK_SANITIZE", "address")
    with pytest.raises(SystemExit, match="2"):
        __main__.main([*command, str(tmp_path)])
    assert "CROSSCHECK_SANITIZE is set" in capsys.readouterr().err
    monkeypatch.delenv("CROSSCHECK_SANITIZE")
    monkeypatch.setenv("PATH", "")
    assert __main__.main([*command, str(tmp_path)]) == 1
    assert "install g++" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80", ["8.0+PTX"]),
        ("80,90", ["8.0", "9.0+PTX"]),
        ("sm_90, 8.0,90", ["8.0", "9.0+PTX"]),
        ("90a,80", ["8.0", "9.0+PTX", "9.0a"]),
        ("100f,9.0a", ["9.0a", "10.0+PTX", "10.0f"]),
        ("12.0,100", ["10.0", "12.0+PTX"]),
    ],
)
def test_architectures(text: str, expected: list[str]) -> None:
    assert __main__._architectures(text) == expected


@pytest.mark.parametrize(
    ("built", "device", "runs"),
    [
        (["8.0"], (8, 0), True),
        (["8.0"], (8, 9), True),
        (["8.6"], (8, 0), False),
        (["8.0"], (9, 0), False),
        (["8.0+PTX"], (9, 0), True),
        (["9.0+PTX"], (8, 9), False),
        (["9.0a"], (9, 0), True),
        (["9.0a"], (10, 0), False),
        (["9.0a+PTX"], (10, 0), False),
        (["10.0f"], (10, 3), True),
        (["10.0f+PTX"], (12, 0), False),
        (["8.0", "9.0+PTX", "9.0a"], (12, 0), True),
        ([], (9, 0), False),
    ],
)
def test_what_runs_where(built: list[str], device: tuple[int, int], runs: bool) -> None:
    assert _shipped.covers(built, *device) is runs


# ---- using, on the host target ----


@needs_host_target
def test_runs_where_no_compiler_is(host_libraries: Path, tmp_path: Path) -> None:
    ran = run_without_compiler(tmp_path, USE_SQUARE)
    assert "BuildError: " in ran.stderr  # truly none
    ran = run_without_compiler(tmp_path, USE_SQUARE, CUDA_REFERENCE_LIBRARIES=str(host_libraries))
    assert (ran.returncode, ran.stdout) == (0, "[9.0, 16.0]\n"), ran.stderr
    assert not (tmp_path / "no-cache").exists()


@needs_host_target
def test_packaged_libraries_run_without_a_setting(host_libraries: Path, tmp_path: Path) -> None:
    package = tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__", "_prebuilt")
    shutil.copytree(_compilers.CSRC.parent, package / "cuda_reference", ignore=ignored)
    shutil.copytree(host_libraries, package / "cuda_reference" / "_prebuilt")
    ran = run_without_compiler(tmp_path, USE_SQUARE, package)
    assert (ran.returncode, ran.stdout) == (0, "[9.0, 16.0]\n"), ran.stderr


@needs_host_target
@pytest.mark.usefixtures("no_compiler")
def test_strict_folder(host_libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "install g++" in str(_build.unavailable("host"))
    monkeypatch.setenv("CUDA_REFERENCE_LIBRARIES", str(host_libraries))
    assert _build.unavailable("host") is None
    library = Path(_build.library("square", "host")._name)
    assert library == _build.build(["square"], "host")["square"]
    assert library.parent == host_libraries

    with pytest.raises(BuildError, match=r"has no library of add\.cu for the host target") as error:
        _build.library("add", "host")
    command = f"python -m cuda_reference build add --target host --out {host_libraries}"
    assert command in str(error.value)
    assert "unset CUDA_REFERENCE_LIBRARIES" in str(error.value)

    library.unlink()
    assert f"No such file or directory: '{library}'" in str(_build.unavailable("host"))
    (host_libraries / "square-host.json").unlink()
    assert "no library of act_backward.cu for the host target" in str(_build.unavailable("host"))
    monkeypatch.setenv("CUDA_REFERENCE_LIBRARIES", str(host_libraries / "absent"))
    assert "absent', which is no folder" in str(_build.unavailable("host"))


@needs_host_target
@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sources": "0123456789ab"}, "is stale: its sources or flags have changed"),
        ({"machine": "riscv64"}, "was built for riscv64, and this machine is"),
        ({"nonsense": 1}, "square-host.json is of no use"),
        ({"library": None}, "square-host.json is no record of a library"),
        ({"size": 4096}, "is damaged: its content is not what was built"),
        ({"sha256": ""}, "is damaged: its content is not what was built"),
    ],
)
def test_wrong_records(
    changes: dict[str, object], says: str, host_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_record(host_libraries, **changes)
    monkeypatch.setenv("CUDA_REFERENCE_LIBRARIES", str(host_libraries))
    for refuse in (_build.build, _build.library):
        with pytest.raises(BuildError) as error:
            refuse(["square"] if refuse is _build.build else "square", "host")  # type: ignore[operator]
        assert says in str(error.value)
        assert "run: python -m cuda_reference build square --target host" in str(error.value)
    assert says in str(_build.unavailable("host"))


@needs_host_target
@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("size", [0, 4096, -1])
def test_damaged_library(size: int, host_libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (library,) = host_libraries.glob("square-host-*.so")
    library.write_bytes(library.read_bytes()[:size])
    monkeypatch.setenv("CUDA_REFERENCE_LIBRARIES", str(host_libraries))
    with pytest.raises(BuildError, match=r"square-host-\w+\.so is damaged.*; .* run: python -m"):
        _build.library("square", "host")


@needs_host_target
def test_a_changed_source_makes_libraries_stale(host_libraries: Path, tmp_path: Path) -> None:
    package = tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__", "_prebuilt")
    shutil.copytree(_compilers.CSRC.parent, package / "cuda_reference", ignore=ignored)
    with (package / "cuda_reference" / "csrc" / "elementwise.cuh").open("a") as header:
        header.write("// changed\n")
    ran = run_without_compiler(
        tmp_path, USE_SQUARE, package, CUDA_REFERENCE_LIBRARIES=str(host_libraries)
    )
    assert ran.returncode == 1
    assert "is stale: its sources or flags have changed since it was built" in ran.stderr


def test_flags_make_libraries_stale_but_the_compiler_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cuda_reference import _compilers

    source = _compilers.CSRC / "square.cu"
    host, cuda = (_compilers.portable_hash(source, target) for target in ("host", "cuda"))
    assert host != cuda
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert _compilers.portable_hash(source, "host") == host
    monkeypatch.setattr(_compilers, "_CUDA_FLAGS", (*_compilers._CUDA_FLAGS, "-use_fast_math"))
    monkeypatch.setattr(_compilers, "_OPTIMISE_FLAGS", ("-O3",))
    assert _compilers.portable_hash(source, "host") != host
    assert _compilers.portable_hash(source, "cuda") != cuda


@needs_host_target
def test_packaged_misfits_are_built_or_told(
    host_libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_shipped, "PACKAGED", host_libraries)
    (library,) = host_libraries.glob("*.so")
    assert _build.build(["square"], "host") == {"square": library}
    assert _build.build(["relu_scale", "square"], "host")["square"] == library
    edit_record(host_libraries, sources="0123456789ab")
    assert _build.build(["square"], "host")["square"] != library  # built as usual
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"install g\+\+") as error:
        _build.build(["square"], "host")
    assert "is stale" in str(error.value)
    assert "unset CUDA_REFERENCE_LIBRARIES" not in str(error.value)


@needs_host_target
@pytest.mark.usefixtures("no_compiler")
def test_sanitized_libraries_are_never_prebuilt_ones(
    host_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_REFERENCE_LIBRARIES", str(host_libraries))
    monkeypatch.setenv("CROSSCHECK_SANITIZE", "address")
    with pytest.raises(BuildError, match=r"install g\+\+"):
        _build.build(["square"], "host")
    monkeypatch.setattr(_shipped, "PACKAGED", host_libraries)
    monkeypatch.delenv("CUDA_REFERENCE_LIBRARIES")
    with pytest.raises(BuildError, match=r"install g\+\+"):
        _build.build(["square"], "host")


# ---- for a GPU ----


@needs_nvcc
def test_cuda_libraries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "libraries"
    command = ["build", "--out", str(folder), "square", "--arch"]
    with pytest.raises(SystemExit, match="2"):
        __main__.main([*command, "10"])
    assert "does not know 10, but " in capsys.readouterr().err
    assert __main__.main([*command, "80"]) == 0
    assert "building 1 libraries for cuda 8.0+PTX with " in capsys.readouterr().out
    record = json.loads((folder / "square-cuda.json").read_text())
    assert record["architectures"] == ["8.0+PTX"]
    library = folder / record["library"]
    flags = _compilers._toolchain("cuda", record["architectures"]).flags
    assert {"arch=compute_80,code=sm_80", "arch=compute_80,code=compute_80"} <= set(flags)

    monkeypatch.setenv("CUDA_REFERENCE_LIBRARIES", str(folder))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _shipped.serves("cuda")
    for device in ((8, 0), (8, 9), (9, 0)):
        monkeypatch.setattr(_shipped, "_capability", lambda device=device: device)
        assert _build.build(["square"], "cuda") == {"square": library}
    edit_record(folder, target="cuda", architectures=["8.0"])
    with pytest.raises(BuildError, match=r"for GPU architectures 8\.0, and this GPU is 9\.0") as e:
        _build.build(["square"], "cuda")
    assert f"build square --target cuda --out {folder} --arch 8.0,9.0;" in str(e.value)
    monkeypatch.setattr(_shipped, "_capability", lambda: (8, 6))
    assert _build.build(["square"], "cuda") == {"square": library}


@pytest.mark.gpu_only
@needs_nvcc
def test_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "libraries"
    capability = "{}{}".format(*torch.cuda.get_device_capability())
    command = ["build", "--out", str(folder), "square", "--arch", capability]
    assert __main__.main(command) == 0
    program = USE_SQUARE.replace("-4.0]", "-4.0], device='cuda'")
    variables = {"CUDA_REFERENCE_LIBRARIES": str(folder)}
    ran = run_without_compiler(tmp_path, program, **variables)
    assert (ran.returncode, ran.stdout) == (0, "[9.0, 16.0]\n"), ran.stderr
    edit_record(folder, target="cuda", architectures=["7.5"])
    ran = run_without_compiler(tmp_path, program, **variables)
    assert ran.returncode == 1
    assert "was built for GPU architectures 7.5, and this GPU is" in ran.stderr
