"""What sanitizers need: copies of any view, pages, shadows, and a self-test that sees renames."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compare.cases import CPU
from compare.copies import copies
from compare.debugging.observers.values import Values
from triton_kernels import interpreter
from triton_kernels.interpreter import handles, selftest, shadowing
from triton_kernels.interpreter.builder import MendedBuilder
from triton_kernels.interpreter.memory import PAGE, Pages


def test_copies_hold_the_elements_of_every_kind_of_view() -> None:
    base = torch.arange(60.0)
    for view in (
        base[3:40:4],
        base.view(6, 10).t()[2:, 1:4],
        base[5:8, None].expand(3, 4),
        base[5:6].expand(3),
        base.unfold(0, 4, 1)[7:],
        base[:0],
        base[4],
    ):
        copy = copies((view,), CPU)[0]
        assert copy.stride() == view.stride()
        assert torch.equal(copy, view)
        assert copy.data_ptr() != view.data_ptr() or not view.numel()


def test_pages() -> None:
    pages = Pages(3 * PAGE, np.int32)
    at = np.array([[5, PAGE + 5], [2 * PAGE + 7, 5]])
    assert not pages[at].any()
    pages[at[:, 1]] = np.array([7, 8])
    assert pages[at].tolist() == [[8, 7], [0, 8]]
    pages[at] = 0
    assert not pages[at].any()


def test_without_shadows_no_builder_method_is_wrapped() -> None:
    with interpreter.interpreting():
        builder = handles.upstream.interpreter_builder
        assert type(builder).__mro__[0] is not shadowing.ShadowedBuilder
        with interpreter.interpreting(Values()):
            assert isinstance(builder, shadowing.ShadowedBuilder)
        assert not isinstance(builder, shadowing.ShadowedBuilder)


def test_the_self_test_misses_what_is_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreter.self_test() == []
    monkeypatch.setattr(selftest, "MOVES", (*selftest.MOVES, "create_renamed"))
    assert any("create_renamed is gone" in line for line in interpreter.self_test())
    monkeypatch.undo()
    monkeypatch.setattr(shadowing.ShadowedBuilder, "create_join", MendedBuilder.create_join)
    assert any("shadow values find" in line for line in interpreter.self_test())
