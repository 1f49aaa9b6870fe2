"""The examples, each in a process of its own: on the CPU everywhere, and on a GPU where one is.

examples/tensor_parallel.py takes several processes: test_distributed.py starts it.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import processes
import pytest

from compare.checking.implementations import unavailable

ROOT = Path(__file__).parents[2]

missing = [name for name in ("sklearn", "matplotlib") if importlib.util.find_spec(name) is None]
needs_the_extra = pytest.mark.skipif(
    bool(missing), reason=f"the extra `examples` is not installed: no {', '.join(missing)}"
)


def run(folder: Path, name: str, *options: str, status: int = 0, **environment: str) -> str:
    """Output of an example that is started in a folder and ends with a status."""
    path = os.pathsep.join([str(ROOT), environment.pop("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = processes.python(
        folder,
        str(ROOT / "examples" / name),
        *options,
        environment={**os.environ, "PYTHONPATH": path, **environment},
    )
    output = done.stdout + done.stderr
    assert done.returncode == status, output
    return output


def on_the_cpu(folder: Path, name: str, *options: str, **environment: str) -> str:
    return run(folder, name, *options, CUDA_VISIBLE_DEVICES="", **environment)


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def accuracies(output: str) -> list[float]:
    return [float(percent) for percent in re.findall(r"([\d.]+)% by", output)]


def skip_without(mode: str) -> None:
    if reason := unavailable().get(mode):
        pytest.skip(f"{mode}: {reason}")


# ---- on the CPU ----


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
def test_hugging_face(tmp_path: Path) -> None:
    output = on_the_cpu(tmp_path, "hugging_face.py")
    assert "fused against float64: pass" in output, output
    assert output.count("→ linear_gelu (act gelu)") == 2


def test_transformer_ffn(tmp_path: Path) -> None:
    output = on_the_cpu(tmp_path, "transformer_ffn.py")
    assert "replaced: 0: Linear" in output
    assert "fused against float64: pass" in output
    assert files(tmp_path) == []


@needs_the_extra
def test_mlp_train(tmp_path: Path) -> None:
    output = on_the_cpu(tmp_path, "mlp_train.py", "--out=curves.svg")
    assert "replaced: 0: Linear" in output
    assert len(re.findall(r"^step +\d+: loss .* by torch, .* by ours$", output, re.M)) == 6
    assert len(accuracies(output)) == 2
    assert min(accuracies(output)) > 80, output
    assert files(tmp_path) == ["curves.svg"]
    assert "<svg" in (tmp_path / "curves.svg").read_text()


@pytest.mark.skipif("matplotlib" in missing, reason="no matplotlib: that would be missing first")
def test_mlp_train_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ImportError('no sklearn')")
    output = run(tmp_path, "mlp_train.py", status=1, PYTHONPATH=str(tmp_path))
    assert output == "no sklearn: python -m pip install scikit-learn matplotlib\n"


def test_own_kernel(tmp_path: Path) -> None:
    skip_without("cuda-host")
    output = on_the_cpu(tmp_path, "own_kernel.py")
    right, wrong = output.split("with an off-by-one in the CUDA kernel:\n")
    assert right.startswith("pass: ")
    assert "cuda on inputs[3] [[1000], [1000]]: right" in right
    assert wrong.startswith("FAIL: the cuda side is wrong\n")
    assert "element (999,): got nan" in wrong
    assert files(tmp_path) == []


def test_cuda_graph_without_a_gpu(tmp_path: Path) -> None:
    output = on_the_cpu(tmp_path, "cuda_graph.py")
    assert output.startswith("CUDA graphs need a GPU")
    assert "largest difference from torch: " in output
    assert files(tmp_path) == []


def test_cupy_interop_with_numpy(tmp_path: Path) -> None:
    output = on_the_cpu(tmp_path, "cupy_interop.py")
    assert output.startswith("no GPU: numpy's arrays")
    assert "back as a numpy array at the same address" in output
    assert files(tmp_path) == []


# ---- on a GPU ----


@pytest.mark.gpu_only
def test_transformer_ffn_on_a_gpu(tmp_path: Path) -> None:
    output = run(tmp_path, "transformer_ffn.py")
    assert "fused against float64: pass" in output
    assert re.search(r"^swapped: \d+ µs$", output, re.M), output


@pytest.mark.gpu_only
@needs_the_extra
def test_mlp_train_on_a_gpu(tmp_path: Path) -> None:
    output = run(tmp_path, "mlp_train.py", "--out=curves.svg")
    assert "step  396: loss" in output
    assert min(accuracies(output)) > 90, output
    assert files(tmp_path) == ["curves.svg"]


@pytest.mark.gpu_only
def test_own_kernel_on_a_gpu(tmp_path: Path) -> None:
    skip_without("cuda-gpu")
    right, wrong = run(tmp_path, "own_kernel.py").split("with an off-by-one in the CUDA kernel:\n")
    assert "cuda on inputs[4] [[10000019], [10000019]]: right" in right
    assert "element (10000018,): got nan" in wrong


@pytest.mark.gpu_only
def test_cuda_graph_on_a_gpu(tmp_path: Path) -> None:
    output = run(tmp_path, "cuda_graph.py")
    for name in ("inference", "training step"):
        assert f"{name}: equal bit for bit\n" in output
    assert output.count("µs on the host") == 4


@pytest.mark.gpu_only
def test_cupy_interop_on_a_gpu(tmp_path: Path) -> None:
    output = run(tmp_path, "cupy_interop.py")
    library = "numpy" if importlib.util.find_spec("cupy") is None else "cupy"
    assert f"back as a {library} array at the same address" in output
