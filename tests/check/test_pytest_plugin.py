"""compare.pytest_plugin, as a foreign repository sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import processes
import pytest
import torch

import compare
from compare import pytest_plugin
from compare.user_kernels import cross_checking

pytest_plugins = ["pytester"]
NAME = "compare.pytest_plugin"
PLUGIN = ("-p", NAME, "--strict-markers")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs within this process bring no plugin but ours; importing hypothesis anew takes 1 s."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def environment(root: Path, site: Path, **more: str) -> dict[str, str]:
    """For a child that finds this checkout, and in ``site`` a dist-info if there is one."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}
    return kept | {"PYTHONPATH": os.pathsep.join([str(root), str(site)]), **more}


def install(site: Path, root: Path) -> None:
    """What pip leaves behind of the entry points."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    folder = site / "triton_kernels_crosscheck-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Name: {settings['name']}\nVersion: 0\n")
    points = settings["entry-points"]["pytest11"].items()
    lines = ["[pytest11]", *(f"{name} = {target}" for name, target in points)]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


# ---- what tests with kernels see: one run in a child, for torch must not be imported twice ----

FOREIGN = """
import pytest
import torch
import triton_kernels
from triton_kernels import interpreter

x = torch.linspace(0.0, 3.0, 300)

def f(x):
    return x.sin()

def g(x):
    out = x.sin()
    out[-1] += 1
    return out

def oracle(x):
    return x.double().sin()

def test_right(cross_check):
    report = cross_check(triton=f, cuda=f, oracle=oracle, inputs=[(x,), (x[:0],)])
    assert str(report).startswith("pass: bitwise equal")
    assert len(report.findings) == 4

def test_tolerance(cross_check):
    cross_check(triton=f, cuda=g, oracle=oracle, inputs=[(x,)], bound=lambda r, x: r.abs() + 1)

def test_wrong(cross_check):
    cross_check(triton=f, cuda=g, oracle=oracle, inputs=[(x[:7],), (x,)])

def test_nothing(cross_check):
    cross_check(triton=f, cuda=f, oracle=oracle, inputs=[])

@pytest.mark.interpreted_only
def test_inside():
    assert triton_kernels.square(torch.full((3,), 3.0)).tolist() == [9.0] * 3
    assert interpreter.active()

@pytest.mark.interpreted_only
def test_failing_inside():
    assert not interpreter.active()

@pytest.mark.interpreted_only
class TestAll:
    def test_inside(self):
        assert interpreter.active()

def test_outside():
    assert not interpreter.active()
"""


@pytest.fixture(scope="module")
def output(root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints for FOREIGN."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "test_foreign.py").write_text(FOREIGN)
    settled = ("-W", "error", "-W", "ignore:cross_check()")  # its functions are torch's
    settings = environment(root, folder, COLUMNS="200")  # the summary is cut to this width
    words = ("-m", "pytest", *PLUGIN, *settled, "-v")
    ran = processes.python(folder, *words, environment=settings)
    return ran.stdout + ran.stderr


def outcomes(output: str) -> dict[str, str]:
    words = [line.split() for line in output.splitlines() if line.startswith("test_foreign.py::")]
    return {word[0].removeprefix("test_foreign.py::"): word[1] for word in words}


def test_outcomes(output: str) -> None:
    assert outcomes(output) == {
        "test_right": "PASSED",
        "test_tolerance": "PASSED",
        "test_wrong": "FAILED",
        "test_nothing": "FAILED",
        "test_inside": "PASSED",
        "test_failing_inside": "FAILED",
        "TestAll::test_inside": "PASSED",
        "test_outside": "PASSED",
    }


def test_a_wrong_pair_fails_with_the_report_alone(output: str) -> None:
    pytest.LineMatcher(output.splitlines()).fnmatch_lines(
        [
            ">       cross_check(triton=f, cuda=g, oracle=oracle, inputs=[[](x[[]:7],), (x,)])",
            "E       Failed: the cuda side is wrong",
            "E       cuda on inputs[[]0] [[][[]7]]: wrong values",
            "E         element (6,): got 1.06* (0x3f8*), expected 0.06* (0x3d*)",
            "E         * ulp, |error| * against a bound of 1; 1 of 7 elements wrong",
            "E       cuda on inputs[[]1] [[][[]300]]: wrong values",
            "FAILED test_foreign.py::test_wrong - Failed: the cuda side is wrong",
        ]
    )
    for module in (cross_checking, pytest_plugin):
        assert Path(str(module.__file__)).name not in output


def test_wrong_usage_points_at_the_test(output: str) -> None:
    pytest.LineMatcher(output.splitlines()).fnmatch_lines(
        [
            ">       cross_check(triton=f, cuda=f, oracle=oracle, inputs=[[]])",
            "E       ValueError: cross_check(): argument 'inputs' is empty*",
        ]
    )


# ---- the markers ----

GPU_TEST = """
import pytest

@pytest.mark.gpu_only
def test_on_the_gpu():
    pass
"""


@pytest.mark.parametrize("present", [False, True])
def test_gpu_only(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, present: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present)
    path = pytester.makepyfile(GPU_TEST)
    result = pytester.runpytest(*PLUGIN, "-rs")
    result.assert_outcomes(passed=int(present), skipped=int(not present))
    if not present:
        result.stdout.fnmatch_lines([f"SKIPPED [[]1] {path.name}:3: gpu_only: no CUDA device"])


def test_a_marker_that_the_repository_registers_keeps_its_meaning(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pytester.makepyfile(GPU_TEST)
    pytester.makeini("[pytest]\nmarkers = gpu_only(kind): another device altogether")
    pytester.runpytest(*PLUGIN).assert_outcomes(passed=1)


def test_markers_and_fixture_are_listed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*PLUGIN, "--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.gpu_only: *CUDA device*",
            "@pytest.mark.interpreted_only: *triton_kernels.interpret()*",
        ]
    )
    result = pytester.runpytest(*PLUGIN, "--fixtures")
    result.stdout.fnmatch_lines(
        ["cross_check * -- *", "    Check a Triton kernel and its CUDA twin against an oracle*"]
    )


# ---- loading ----


def test_importing_the_plugin_loads_nothing_heavy(root: Path, tmp_path: Path) -> None:
    code = f"import sys, {NAME}; print(*{{'torch', 'triton', 'numpy'}} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(root, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == ""


@pytest.mark.parametrize("ways", ["entry point", "conftest", "entry point, conftest, -p"])
def test_loads_once_and_costs_nothing_unused(root: Path, tmp_path: Path, ways: str) -> None:
    """Pytest refuses a module that is registered twice; torch is not for tests that need none."""
    site = tmp_path / "site"
    if "entry point" in ways:
        install(site, root)
    if "conftest" in ways:
        (tmp_path / "conftest.py").write_text(f"pytest_plugins = [{NAME!r}]\n")
    (tmp_path / "test_light.py").write_text(
        f"""
import sys

def test_light(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin({NAME!r})
    assert not {{"compare.user_kernels.cross_checking", "triton_kernels"}} & set(sys.modules)
"""
    )
    command = [sys.executable, "-m", "pytest", "-W", "error", "--strict-markers"]
    command += ["-p", NAME] if "-p" in ways else []
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(root, site),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


def test_the_installed_checkout_loads_it_once(root: Path, tmp_path: Path) -> None:
    """By its entry point and by tests/conftest.py; without the first, this very run shows."""
    install(tmp_path, root)
    ran = processes.python(
        root, "-m", "pytest", "--markers", environment=environment(root, tmp_path)
    )
    assert ran.returncode == 0, ran.stderr
    for marker in pytest_plugin.MARKERS:
        assert ran.stdout.count(f"@pytest.mark.{marker}:") == 1


def test_this_run_has_it(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.get_plugin(NAME) is pytest_plugin


def test_the_package_exports_lazily_and_completely() -> None:
    for name in compare.__all__:
        assert name in dir(compare)
        assert getattr(compare, name).__name__ == name
    assert compare.cross_check is cross_checking.cross_check
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = compare.nothing
    code = "import sys, compare.pytest_plugin; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


WRONG = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    doubled = tl.load(x_ptr + at, mask=at < n) * 3
    tl.store(out_ptr + at, doubled, mask=at < n)

def function(x):
    out = torch.empty(5)
    kernel[(1,)](x, out, 5, BLOCK=8)
    return out

def test_wrong(cross_check):
    cross_check(triton=function, oracle=lambda x: 2 * x, inputs=[(torch.ones(5),)])

def test_the_other_side(cross_check):
    cross_check(cuda=function, oracle=lambda x: x, inputs=[(torch.ones(5),)])
"""


def test_kernel_debug_prints_what_debug_finds(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WRONG)
    result = pytester.runpytest(*PLUGIN, "--kernel-debug", "-k", "test_wrong")
    result.assert_outcomes(failed=1, deselected=1)
    lines = ["*triton on inputs*wrong values*", "*function (kernel?1, 1, 1?): WRONG*"]
    lines += ["*on the way to result?0?, lane ?0?*", "*doubled = 3*doubled = tl.load*"]
    result.stdout.fnmatch_lines(lines)
    plain = pytester.runpytest(*PLUGIN)
    plain.assert_outcomes(failed=2)
    failures, _, _ = plain.stdout.str().partition("short test summary")  # which repeats it under CI
    assert failures.count("pytest --kernel-debug says where") == 1  # of the side that is Triton's
