"""Caches of libraries that are these tests' own, and the sources built in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cached import write_source
from host_kernels import KERNELS
from torch import Tensor

from cuda_reference import _arguments


@pytest.fixture(scope="session")
def kernels_cu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the sources above alone."""
    folder = tmp_path_factory.mktemp("csrc")
    (folder / "kernels.cu").write_text(KERNELS)
    return folder


@pytest.fixture(scope="session")
def kernels_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def sources(kernels_cu: Path, kernels_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources above, with a cache of their tests' own."""
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(kernels_cache))
    for name in ("CROSSCHECK_SANITIZE", "CROSSCHECK_THREAD_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return kernels_cu


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, not made yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(folder))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    for name in ("CXX", "CROSSCHECK_SANITIZE", "CUDA_REFERENCE_LIBRARIES"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    return write_source(tmp_path / "csrc")


@pytest.fixture(scope="module")
def no_gpu() -> Iterator[None]:
    """Else torch builds what is loaded, too, and some sources are wrong on purpose; what it builds
    is test_load_on_gpu's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The op of every tensor that was checked from the beginning."""
    seen: list[str] = []
    check = _arguments.check_tensor

    def noted(op: str, *rest: Any) -> Tensor:
        seen.append(op)
        return check(op, *rest)

    monkeypatch.setattr(_arguments, "check_tensor", noted)
    return seen
