"""The cache of built libraries: what is wrong in it is built again, builds at once do no harm."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest
from cached import build, needs_host_target, needs_nvcc, record, write_source

from cuda_reference import BuildError, _build, _compilers, _storage

PACKAGES = str(_compilers.CSRC.parent.parent)
LOAD = """
import sys
from pathlib import Path
from cuda_reference import _build
print(_build.library("sample", sys.argv[2], csrc=Path(sys.argv[1])).answer())
"""
pytestmark = pytest.mark.usefixtures("cache")
ROOT = os.geteuid() == 0
NOBODY = 65534
LONG_AGO = (1e9, 1e9)


def built_anew(csrc: Path, content: bytes) -> bool:
    """Whether the library is there, whole, and can be loaded."""
    library = build(csrc)
    return library.read_bytes() == content and ctypes.CDLL(str(library)).answer() == 42


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return processes.python(Path(PACKAGES), "-c", program, *words)


def run_anew(program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """With variables that Python reads as it starts."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": PACKAGES, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A C++ compiler that is a shell script."""
    file = tmp_path / "c++"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("CXX", str(file))


# ---- damage ----


@needs_host_target
@pytest.mark.parametrize(
    "damage",
    [
        *(pytest.param(lambda b, n=n: b[:n], id=f"cut to {n}") for n in (0, 1, 64, 4096, -1)),
        pytest.param(lambda b: b[: len(b) // 2], id="cut in half"),
        *(
            pytest.param(lambda b, n=n: b[:n] + bytes([b[n] ^ 1]) + b[n + 1 :], id=f"bit in {n}")
            for n in (0, 5000, 15000)
        ),
        pytest.param(lambda b: bytes(len(b)), id="zeros"),
        pytest.param(lambda b: b + b"\0", id="longer"),
        pytest.param(lambda b: None, id="gone"),
    ],
)
def test_a_damaged_library_is_built_again(
    damage: Callable[[bytes], bytes | None], csrc: Path
) -> None:
    library = build(csrc)
    content = library.read_bytes()
    damaged = damage(content)
    library.unlink()  # and not written over: this process may have it loaded
    if damaged is not None:
        library.write_bytes(damaged)
    assert built_anew(csrc, content)


@needs_host_target
def test_a_truncated_library_does_not_end_the_process(csrc: Path) -> None:
    os.truncate(build(csrc), 4096)
    ran = run(LOAD, str(csrc), "host")
    assert (ran.returncode, ran.stdout) == (0, "42\n"), ran.stderr


@needs_host_target
@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "{", "null", "[]", "7", '"text"', "{}", "\0", "\udcff", '{"library": 7}'),
        *('{"library": "sample"}', '{"library": "\\u0000", "size": 1, "sha256": ""}'),
        *("half", "size", "sha256", "library"),
    ],
)
def test_a_damaged_record_is_written_again(text: str | None, csrc: Path, cache: Path) -> None:
    content = build(csrc).read_bytes()
    file = record(cache)
    right = file.read_text()
    if text is None:
        file.unlink()
    elif text == "half":
        file.write_text(right[: len(right) // 2])
    elif text in ("size", "sha256", "library"):
        file.write_text(json.dumps({**json.loads(right), text: "another"}))
    else:
        file.write_bytes(os.fsencode(text))
    assert built_anew(csrc, content)
    assert file.read_text() == right


@needs_nvcc
def test_a_damaged_cubin_is_built_again(csrc: Path, cache: Path) -> None:
    first, account = _build.cubin("sample", "sm_90", csrc=csrc)
    (kept,) = cache.glob("*.cubin")
    os.truncate(kept, 100)
    again = _build.cubin("sample", "sm_90", csrc=csrc)
    assert len(again[0]) == len(first)
    assert "Compiling entry function" in account
    assert "Compiling entry function" in again[1]


@needs_host_target
def test_a_damaged_inline_source_is_written_again(cache: Path) -> None:
    import torch

    from cuda_reference import load_inline

    source = """
        __global__ void set(int* out) { *out = 7; }
        extern "C" int run(int* out, cudaStream_t stream) {
          LAUNCH(set, 1, 1, 0, stream, out);
          return cudaGetLastError();
        }"""
    declared = {"run": "int* out, cudaStream_t stream"}
    out = torch.zeros(1, dtype=torch.int32)
    load_inline(source, declared).run(out)
    files = sorted((cache / "inline").rglob("*.cu"))
    assert [file.name for file in files] == ["run.cu"] * 2
    contents = [file.read_bytes() for file in files]
    for file in files:
        os.truncate(file, 20)
    _build._load.cache_clear()
    load_inline(source, declared).run(out.zero_())
    assert out.tolist() == [7]
    assert [file.read_bytes() for file in files] == contents


# ---- builds at once, builds that were killed ----


@needs_host_target
def test_a_second_build_leaves_the_first_one_alone(
    tmp_path: Path, csrc: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers do not always give the same bytes: another process may still be about to load."""
    stamp = tmp_path / "stamp"
    real = " ".join(_compilers._host_compiler())
    compiler(tmp_path, monkeypatch, f'exec {real} -Wl,--build-id=0x$(cat {stamp}) "$@"')
    stamp.write_text("01")
    first = build(csrc)
    content = first.read_bytes()
    record(cache).unlink()
    stamp.write_text("02")
    second = build(csrc)
    assert second.read_bytes() != content
    assert first.read_bytes() == content
    assert build(csrc) == second


@needs_host_target
def test_what_a_killed_build_left_is_removed(
    tmp_path: Path, csrc: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, monkeypatch, "kill -9 $BUILDER")
    program = "import os; os.environ['BUILDER'] = str(os.getpid())\n" + LOAD
    assert run(program, str(csrc), "host").returncode == -9
    (left,) = cache.glob("build-*")
    monkeypatch.delenv("CXX")
    build(csrc)
    assert left.exists(), "a build as young as that may be about to take its lock"
    os.utime(left, LONG_AGO)
    (csrc / "new.cuh").touch()
    build(csrc)
    assert not list(cache.glob("build-*"))


def test_what_is_alive_or_not_ours_is_not_removed(tmp_path: Path) -> None:
    others = tmp_path / "build-of-mine"
    others.mkdir()
    (others / "thesis.tex").touch()
    os.utime(others, LONG_AGO)
    program = (
        "import sys, pathlib\n"
        "from cuda_reference import _storage\n"
        "with _storage.workspace(pathlib.Path(sys.argv[1])): pass\n"
    )
    with _storage.workspace(tmp_path) as work:
        os.utime(work, LONG_AGO)  # suspended for days
        ran = run(program, str(tmp_path))
        assert ran.returncode == 0, ran.stderr
        assert work.is_dir()
    assert list(tmp_path.iterdir()) == [others]
    assert (others / "thesis.tex").exists()


@needs_host_target
def test_what_a_killed_compiler_left_is_no_library(
    tmp_path: Path, csrc: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_output = 'while [ "$1" != -o ]; do shift; done'
    compiler(tmp_path, monkeypatch, f"{find_output}; echo half > $2; kill -9 $$")
    with pytest.raises(BuildError, match=r"could not build sample\.cu"):
        build(csrc)
    assert {path.suffix for path in cache.iterdir()} <= {".log"}


# ---- a cache that cannot be written ----


@contextlib.contextmanager
def cannot_write(folder: Path) -> Iterator[None]:
    """As a user who can read a folder only; root, who can do everything, becomes another one."""
    folder.chmod(0o755 if ROOT else 0o555)
    if ROOT:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        if ROOT:
            os.setresuid(0, 0, 0)
        folder.chmod(0o700)


@needs_host_target
def test_a_read_only_cache_is_used(csrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing else is read in between: what a test's root may read, another user may not.
    monkeypatch.setattr(_build, "_key", lambda source, toolchain: source.stem)
    toolchain = _compilers._toolchain("host")
    held, absent = {"sample": csrc / "sample.cu"}, {"absent": csrc / "sample.cu"}
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        Path(name).chmod(0o755)
        shared = Path(name) / "shared"
        monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(shared))
        built = _build.compile_sources(held, "host", toolchain)
        with cannot_write(shared):
            assert _build.compile_sources(held, "host", toolchain) == built
            monkeypatch.setattr(_build, "_key", lambda source, toolchain: "absent")
            with pytest.raises(BuildError) as caught:
                _build.compile_sources(absent, "host", toolchain)
    says = str(caught.value)
    assert f"the library cache {shared} does not hold what is needed" in says
    assert "Permission denied" in says
    assert "set CUDA_REFERENCE_CACHE to a folder that can be written" in says


@needs_host_target
def test_a_full_disk_says_so_and_leaves_nothing(
    csrc: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(BuildError, match=r"No space left on device.*set CUDA_REFERENCE_CACHE"):
            build(csrc)
    assert list(cache.iterdir()) == []
    assert ctypes.CDLL(str(build(csrc))).answer() == 42


@needs_host_target
def test_disks_that_are_truly_full(csrc: Path, tmp_path: Path) -> None:
    """One too small for the folder to build in, for the linker, and for what is kept."""
    disk = tmp_path / "disk"
    disk.mkdir()
    program = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from cuda_reference import BuildError, _build\n"
        "csrc, disk = map(Path, sys.argv[1:])\n"
        "for size in (4, 16, 32):\n"
        "    options = f'size={size}k,mode=700'\n"
        "    mount = ['mount', '-t', 'tmpfs', '-o', options, 'none', disk]\n"
        "    if subprocess.run(mount).returncode: sys.exit('mount failed')\n"
        "    try: _build.build(['sample'], 'host', csrc=csrc)\n"
        "    except BuildError as error: assert 'No space left on device' in str(error), error\n"
        "    else: raise AssertionError(size)\n"
        "    left = [path.name for path in disk.iterdir() if path.suffix != '.log']\n"
        "    assert not left, left\n"
    )
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", program]
    try:
        ran = subprocess.run(
            [*command, str(csrc), str(disk)],
            env={**os.environ, "PYTHONPATH": PACKAGES, "CUDA_REFERENCE_CACHE": str(disk)},
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    if "mount failed" in ran.stderr or "unshare" in ran.stderr:
        pytest.skip(f"no small disk can be mounted here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr


# ---- names ----


@pytest.mark.parametrize("target", [pytest.param("host", marks=needs_host_target),
                                    pytest.param("cuda", marks=needs_nvcc)])  # fmt: skip
@pytest.mark.parametrize(
    ("name", "utf8"),
    [(b"J\xc3\xb6rg, \xe6\x97\xa5\xe6\x9c\xac", "0"), (b"J\xf6rg", "1")],
    ids=["UTF-8 where text is ASCII", "Latin 1 where text is UTF-8"],
)
def test_any_path_in_any_locale(target: str, utf8: str, name: bytes, tmp_path: Path) -> None:
    home = tmp_path / os.fsdecode(name)
    home.mkdir()
    variables = {"LC_ALL": "C", "PYTHONUTF8": utf8, "HOME": str(home)}
    program = (
        "import sys, pathlib\n"
        "from cuda_reference import _build\n"
        "csrc, target = pathlib.Path(sys.argv[1]), sys.argv[2]\n"
        "print(_build.library('sample', target, csrc=csrc).answer(), flush=True)\n"
        "(csrc / 'sample.cu').write_bytes('int gr\\xf6\\xdfe = unbekannt;'.encode())\n"
        "_build.build(['sample'], target, csrc=csrc)\n"
    )
    csrc = write_source(home / "csrc")
    ran = run_anew(program, str(csrc), target, CUDA_REFERENCE_CACHE="~/cache", **variables)
    assert ran.stdout == "42\n", ran.stderr
    assert record(home / "cache")
    assert "sample.cu:1: error: " in ran.stderr
    if (target, utf8) != ("cuda", "1"):  # nvcc does not repeat a name that is not UTF-8 as it is
        assert "1 | int gr" in ran.stderr
