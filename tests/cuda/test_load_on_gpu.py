"""load with CUDA tensors: what torch.utils.cpp_extension builds of the same sources."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
from written_kernels import HEADER, MANY

from cuda_reference import load, load_inline


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What cpp_extension is asked to build, on a machine that says it has a GPU."""
    from torch.utils import cpp_extension

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def build(*arguments: Any, **named: Any) -> types.SimpleNamespace:
        calls.append((arguments, named))
        return types.SimpleNamespace(twice=lambda x: 2 * x)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cpp_extension, "load", build)
    monkeypatch.setattr(cpp_extension, "load_inline", build)
    return calls


def test_files_go_to_torch_as_they_are(tmp_path: Path, asked: list[Any]) -> None:
    source = tmp_path / "twice.cu"
    source.write_text("#include <torch/extension.h>\n__shared__ no source that compiles\n")
    module = load(
        "twice", str(source), extra_cuda_cflags=["-O3"], extra_include_paths=[str(tmp_path)]
    )
    assert [name for name in vars(module) if not name.startswith("_")] == ["twice"]
    ((arguments, named),) = asked
    assert not arguments
    assert (named["name"], named["sources"]) == ("twice", [str(source)])
    assert named["extra_cuda_cflags"] == ["-O3"]
    assert named["extra_include_paths"] == [str(tmp_path)]
    assert named["is_python_module"]


def test_strings_go_to_torch_as_they_are(asked: list[Any]) -> None:
    load_inline("twice", "declared", ["defined"], functions=["twice"], extra_cflags=["-O1"])
    load_inline("twice", cuda_sources="defined", functions={"twice": "doubles"})
    (_, named), (_, others) = asked
    assert (named["name"], named["cpp_sources"]) == ("twice", ["declared"])
    assert named["cuda_sources"] == ["defined"]
    assert named["functions"] == ["twice"]
    assert named["extra_cflags"] == ["-O1"]
    (bound,) = others["cuda_sources"]
    assert (others["name"], others["cpp_sources"], others["functions"]) == ("twice", [], None)
    assert bound.startswith("#include <torch/extension.h>\ndefined\n")
    assert 'm.def("twice", &twice, "doubles");' in bound


def test_what_is_for_torchs_build_alone(asked: list[Any]) -> None:
    """What is as by default is left out, for versions of torch that do not know it."""
    module = load_inline(
        "twice", "declared", "", functions=["twice"], with_cuda=True, no_implicit_headers=True
    )
    ((_, named),) = asked
    assert (named["with_cuda"], named["no_implicit_headers"]) == (True, True)
    assert not {"use_pch", "with_pytorch_error_handling", "keep_intermediates"} & {*named}
    named["cpp_sources"].append("as torch does it")
    module._on_gpu(True)  # what another process would ask for
    assert asked[1][1]["cpp_sources"] == ["declared"]


@pytest.mark.usefixtures("cache")
def test_a_module_beside_a_library_of_operators(tmp_path: Path, asked: list[Any]) -> None:
    source = tmp_path / "twice.cu"
    source.write_text("TORCH_LIBRARY(crosscheck_none, m) {}\nPYBIND11_MODULE(twice, m) {}")
    assert hasattr(load("twice", str(source)), "twice")
    assert asked[0][1]["is_python_module"]


@pytest.mark.usefixtures("cache")
def test_sources_of_one_name_are_built_apart(tmp_path: Path, asked: list[Any]) -> None:
    """Two processes would otherwise build in one folder and load what came last."""
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "twice.cu").write_text("the same in both")
    first, second = (tmp_path / name / "twice.cu" for name in "01")
    load("twice", str(first))
    load("twice", str(first), verbose=True)
    load("twice", str(second))
    load("twice", str(first), extra_cuda_cflags=["-O1"])
    first.write_text("changed")
    load("twice", str(first))
    load_inline("twice", "", "one", functions=["twice"])
    load_inline("twice", "", "another", functions=["twice"])
    folders = [named["build_directory"] for _, named in asked]
    assert folders[0] == folders[1]
    assert len({*folders}) == 6
    assert all(Path(folder).is_relative_to(tmp_path / "cache" / "torch") for folder in folders)


@pytest.mark.usefixtures("cache")
def test_a_lock_that_a_killed_process_left_is_removed(tmp_path: Path, asked: list[Any]) -> None:
    load_inline("twice", "", "defined", functions=["twice"])
    folder = Path(asked[0][1]["build_directory"])
    (folder / "lock").touch()
    load_inline("twice", "", "defined", functions=["twice"])
    assert folder == Path(asked[1][1]["build_directory"])
    assert not (folder / "lock").exists()


def test_a_folder_that_is_asked_for_is_torchs_own_business(
    tmp_path: Path, asked: list[Any]
) -> None:
    (tmp_path / "lock").touch()
    load_inline("twice", "", "defined", functions=["twice"], build_directory=str(tmp_path))
    ((_, named),) = asked
    assert named["build_directory"] == str(tmp_path)
    assert (tmp_path / "lock").exists()


@pytest.mark.gpu_only
def test_the_same_source_on_both(tmp_path: Path) -> None:
    (tmp_path / "common.cuh").write_text(HEADER)
    # torch's loader refuses a function that nobody defines.
    text = MANY.replace("  EXPORT(elsewhere)\n", "").replace("extern void elsewhere", "// ")
    (tmp_path / "many.cu").write_text(text)
    module = load("many_on_both", [str(tmp_path / "many.cu")])
    x = torch.randn(4, 64)
    for name in ("twice_f32", "twice_f32x4"):
        y, on_gpu = torch.zeros_like(x), torch.zeros_like(x).cuda()
        getattr(module, name)(x, y)
        getattr(module, name)(x.cuda(), on_gpu)
        assert torch.equal(y, on_gpu.cpu())
        assert torch.equal(y, 2 * x)
    whole = torch.randint(-9, 9, (3, 150)).float()
    assert torch.equal(module.row_sums(whole), module.row_sums(whole.cuda()).cpu())
    assert torch.equal(module.reversed(x[0]), module.reversed(x[0].cuda()).cpu())
    for mine, theirs in zip(module.split(x[:, 1]), module.split(x.cuda()[:, 1])):
        assert torch.equal(mine, theirs.cpu())
    numbers = torch.arange(32, dtype=torch.int32)
    out, on_gpu = torch.zeros_like(numbers), torch.zeros_like(numbers).cuda()
    module.groups(numbers, out)
    module.groups(numbers.cuda(), on_gpu)
    assert torch.equal(out, on_gpu.cpu())
    out, on_gpu = torch.zeros(32), torch.zeros(32).cuda()
    module.copies(x[0], out, True)
    module.copies(x[0].cuda(), on_gpu, True)
    assert torch.equal(out, on_gpu.cpu())
