"""The shape of the repository: who imports whom, one stem an op, docstrings, short test files.

Almost everything here reads source text; the import test runs the packages in a child process.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from checkout import PACKAGES, ROOT

from compare.ops import SPECS

THIRD_PARTY = {
    "triton_kernels": {"torch", "triton", "numpy"},
    "cuda_reference": {"torch", "ninja"},
    "compare": {
        *{"torch", "triton", "numpy", "rich", "typer", "pynvml"},
        *{"triton_kernels", "cuda_reference"},
    },
}
# Nobody else may need pytest to run.
PYTEST_ONLY_IN = ("compare/pytest_plugin.py", "compare/timing/fixtures.py")
# The extras `report` and `models`, imported by name when they are needed.
OPTIONAL_IN = {
    "compare/models/architectures.py": "transformers",
    "compare/pages/rendering.py": "jinja2",
    "compare/reporting/svg.py": "matplotlib",
}
# What the upstream package of the same name calls its modules.
UPSTREAM = {
    "compaction",
    "distributed",
    "matmul",
    "numerics",
    "reduce",
    "roofline",
    "routing",
    "specialize",
    "swiglu",
    "target_info",
    "tensor",
    "testing",
    "topk",
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def modules(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


SOURCES = [(package, path) for package in PACKAGES for path in modules(package)]
each_source = pytest.mark.parametrize(
    ("package", "path"), SOURCES, ids=[str(path.relative_to(ROOT)) for _, path in SOURCES]
)


def exported(package: str) -> list[str]:
    """The names in the package's __all__: those of the stub, where it finds its ops at import."""
    stub = ROOT / package / "__init__.pyi"
    for node in tree(stub if stub.is_file() else ROOT / package / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{package} has no __all__")


def specs() -> dict[str, str]:
    """Op → stem, as the scan of compare/ops finds them."""
    return {spec.name: spec.stem for spec in SPECS.values()}


# ---- imports ----


@each_source
def test_imports(package: str, path: Path) -> None:
    """The two sides know nothing of each other; compare knows both; nobody imports tests."""
    allowed = THIRD_PARTY[package] | {package, "__future__"} | sys.stdlib_module_names
    if path in [ROOT / name for name in PYTEST_ONLY_IN]:
        allowed |= {"pytest"}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [] if node.level else [node.module or ""]
            assert all(alias.name != "*" for alias in node.names), f"line {node.lineno}: import *"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [a.value for a in node.args if isinstance(a, ast.Constant)]
            optional = OPTIONAL_IN.get(path.relative_to(ROOT).as_posix())
            names = [name for name in names if name.split(".")[0] != optional]
        else:
            continue
        for name in names:
            assert name.split(".")[0] in allowed, f"line {node.lineno}: {name}"


# The rooms of compare, lowest first: a room imports rooms before it and itself.
ROOMS = (
    ("numerics", "tensor_cores"),
    ("pages",),
    ("cases", "case_options", "copies"),
    ("specs", "ops"),
    ("checking",),
    ("debugging",),
    ("timing",),
    ("compiling",),
    ("profiling",),
    ("doctor",),
    ("user_kernels",),
    ("models",),
    ("mutation",),
    ("pytest_plugin",),
    ("reporting",),
    ("commands", "cli", "__main__"),
)


def imported(package: str) -> dict[str, set[str]]:
    """Module → the modules of its package that it imports, in functions, too, but not for types."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in modules(package)
    }

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    return {name: set(visit(tree(path))) & names.keys() for name, path in names.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_round_no_circle(package: str) -> None:
    rest = {name: others - {package} for name, others in imported(package).items()}
    rest.pop(package)  # its exports, which nothing in it uses
    while free := [name for name, others in rest.items() if not others & rest.keys()]:
        for name in free:
            del rest[name]
    assert not rest, f"in circles, or behind one: {rest}"


def test_a_room_of_compare_imports_only_rooms_before_it() -> None:
    level = {name: number for number, names in enumerate(ROOMS) for name in names}
    for module, others in imported("compare").items():
        if module == "compare":
            continue
        own = level[module.split(".")[1]]
        for other in others - {"compare"}:
            assert level[other.split(".")[1]] <= own, f"{module} imports {other}"


def test_neither_side_names_the_other_in_code() -> None:
    """Not even as text that an import could be made of; docstrings and comments may."""
    for package, other in (
        ("triton_kernels", "cuda_reference"),
        ("cuda_reference", "triton_kernels"),
    ):
        for path in modules(package):
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.Name):
                    assert node.id not in (other, "compare"), path
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert node.value.split(".")[0] != other, f"{path}:{node.lineno}"


def test_compare_uses_what_the_sides_document() -> None:
    """No private module of theirs, but for those that tell of launches, builds and sources."""
    private = {"_build", "_compilers", "_inline", "_launch", "_shipped", "_watch"}
    private |= {"_guards", "_known_calls", "_launcher", "_replay", "_replayed", "_tokens"}
    private |= {"_activations", "_extension", "_loading", "_on_host", "_torch_calls"}
    documented = ast.get_docstring(tree(ROOT / "triton_kernels" / "interpreter" / "__init__.py"))
    assert documented is not None
    for path in modules("compare"):
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            side, _, inner = node.module.partition(".")
            if side not in PACKAGES[:2]:
                continue
            for name in (alias.name for alias in node.names):
                where = f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
                parts = [part for part in (*inner.split("."), name) if part.startswith("_")]
                assert set(parts) <= private, where
                if inner.startswith("interpreter"):
                    submodule = inner.partition(".")[2]
                    assert f":`{submodule or name}`" in documented, f"{where} is not documented"


CHILD = """
import json, os, sys
import numpy, torch, triton
before = dict(os.environ)
from {package} import *  # whatever an export loads lazily, too
print(json.dumps({{
    "cuda": torch.cuda.is_initialized(),
    "changed": sorted(set(before.items()) ^ set(os.environ.items())),
    "loaded": sorted({{m.split(".")[0] for m in sys.modules}}),
    "interpreters": sorted(
        {{"triton.runtime.interpreter", "triton_kernels.interpreter"}} & set(sys.modules)
    ),
}}))
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_import_does_nothing(package: str, tmp_path: Path) -> None:
    """No device asked, no compiler started, no environment changed, no file left behind."""
    tools = tmp_path / "bin"
    home = tmp_path / "home"
    tools.mkdir()
    home.mkdir()
    started = tmp_path / "started"
    for tool in ("c++", "cc", "clang++", "g++", "gcc", "git", "ninja", "nvcc", "nvidia-smi"):
        script = tools / tool
        script.write_text(f"#!/bin/sh\necho {tool} >> {started}\nexit 1\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    kept = ("LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"PATH": str(tools), "HOME": str(home), "PYTHONPATH": str(ROOT)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
    code = CHILD.format(package=package)
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert not found["cuda"]
    assert not found["changed"]
    assert not started.exists(), started.read_text()
    assert package == "compare" or not found["interpreters"]
    others = set(PACKAGES) - {package} - THIRD_PARTY[package]
    assert not others & set(found["loaded"])
    left = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]
    assert not left


# ---- one stem an op ----


def test_every_spec_has_its_files_and_exports() -> None:
    assert specs()
    for op, stem in specs().items():
        assert (ROOT / "triton_kernels" / "ops" / f"{stem}.py").is_file(), op
        assert (ROOT / "cuda_reference" / "csrc" / f"{stem}.cu").is_file(), op
        for package in ("triton_kernels", "cuda_reference"):
            assert op in exported(package), f"{op} is not exported by {package}"


def test_every_file_and_export_has_its_spec() -> None:
    stems, ops = set(specs().values()), set(specs())
    files = {
        "triton_kernels/ops": {p.stem for p in (ROOT / "triton_kernels" / "ops").glob("[!_]*.py")},
        "cuda_reference/csrc": {p.stem for p in (ROOT / "cuda_reference" / "csrc").glob("*.cu")},
    }
    for folder, found in files.items():
        assert found == stems, folder
    models = {"explain", "fuse", "nn", "replace_modules", "restore_modules"}
    models.add("register_activation")
    others = {"__version__", "capabilities", "interpret", "tune", "variants"} | models
    assert set(exported("triton_kernels")) - ops == others
    assert set(exported("cuda_reference")) - ops == {
        "BuildError",
        "capabilities",
        "load",
        "load_inline",
        "register_activation",
        "variants",
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_exports_are_bound_by_explicit_lines(package: str) -> None:
    """In the stub, where the package finds its ops at import."""
    names = exported(package)
    assert len(set(names)) == len(names)
    stub = ROOT / package / "__init__.pyi"
    bound = set()
    for node in ast.walk(tree(stub if stub.is_file() else ROOT / package / "__init__.py")):
        if isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.Assign):
            bound |= {ast.unparse(target) for target in node.targets}
    assert set(names) <= bound


def test_stubs_are_fresh() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "stubs"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_stubs_name_what_the_packages_have() -> None:
    for package in PACKAGES[:2]:
        module = __import__(package)
        assert set(exported(package)) == set(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_submodule_hides_an_export(package: str) -> None:
    """``import triton_kernels.add`` would put the module where the function stands."""
    submodules = {path.stem for path in (ROOT / package).glob("*.py")}
    submodules |= {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    hidden = submodules & set(exported(package))
    assert hidden <= ({"nn"} if package == "triton_kernels" else set())  # which is that package


def test_no_submodule_is_named_like_one_upstream() -> None:
    """Both packages may meet on one path; a wrong one must fail at import, not later."""
    folder = ROOT / "triton_kernels"
    names = {path.stem for path in folder.glob("*.py")} | {p.name for p in folder.iterdir()}
    assert not names & UPSTREAM


def test_packages_are_listed_for_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    here = {
        str(path.parent.relative_to(ROOT)).replace(os.sep, ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert set(settings["packages"]) == here
    data = {p for p in (ROOT / "cuda_reference" / "csrc").rglob("*") if p.is_file()}
    reporting = (ROOT / "compare" / "reporting").glob("*.*")
    data |= {p for p in reporting if p.suffix not in (".py", ".pyc")}
    data |= {ROOT / p / "py.typed" for p in PACKAGES}
    data |= {ROOT / p / "__init__.pyi" for p in PACKAGES[:2]}
    packed = {
        p
        for package, globs in settings["package-data"].items()
        for glob in globs
        for p in (ROOT / package.replace(".", "/")).glob(glob)
    }
    assert data <= packed, data - packed


# ---- the tests ----


def test_test_files_are_short() -> None:
    long = {
        str(p.relative_to(ROOT)): len(p.read_text().splitlines())
        for p in (ROOT / "tests").rglob("*.py")
    }
    assert {name: lines for name, lines in long.items() if lines > 500} == {}


# ---- docstrings ----


def is_kernel(node: ast.AST) -> bool:
    """Whether it is a jit function: its file's docstring holds the formula."""
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(d).startswith("triton.jit") for d in decorators)


@each_source
def test_docstrings(package: str, path: Path) -> None:
    assert ast.get_docstring(tree(path)), "the module has no docstring"
    for node in tree(path).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or is_kernel(node):
            continue
        if not node.name.startswith("_"):
            assert ast.get_docstring(node), f"line {node.lineno}: {node.name} has no docstring"


def test_public_functions_say_what_they_take_and_raise() -> None:
    for op, stem in specs().items():
        module = tree(ROOT / "triton_kernels" / "ops" / f"{stem}.py")
        function = next(n for n in module.body if getattr(n, "name", None) == op)
        text = ast.get_docstring(function) or ""
        assert "Args:" in text, op
        assert "Raises:" in text, op
        arguments = [*function.args.args, *function.args.kwonlyargs]
        missing = [a.arg for a in arguments if not re.search(rf"\b{a.arg}\b", text)]
        assert not missing, f"{op}: {missing}"
