"""act_backward where a program has several blocks of rows: the interpreter would need a thousand
programs to come to that by itself."""

from __future__ import annotations

import pytest

from compare.cases import Case
from compare.checking import verdicts
from compare.checking.implementations import implementations
from compare.ops import SPECS
from triton_kernels import _launch
from triton_kernels._launch import Launch
from triton_kernels.ops import act_backward


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("programs", "parts"), [(1, 1), (10, 2)])
def test_several_blocks_of_rows_in_a_part(
    programs: int,
    parts: int,
    dtype: str,
    launches: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(act_backward, "PROGRAMS", 1)
    spec = SPECS["act_backward"]
    ways = implementations(spec, ["triton-interpreted"])
    for values, act in (("integers", "relu"), ("normal", "gelu")):
        case = Case("act_backward", dtype, (129, 257), "padded", values, options={"act": act})
        with _launch.multiprocessors(programs):
            (result,) = verdicts.check(spec, [case], ways)
        (outcome,) = result.outcomes
        assert outcome.mismatch is None, str(outcome.mismatch)
        assert launches[0].grid[:2] == (5, parts)
        launches.clear()
