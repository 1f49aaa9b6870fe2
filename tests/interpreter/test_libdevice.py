"""libdevice, tl.math and inline assembly, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_kernels import call_libdevice, same

REFERENCES: dict[str, Any] = {
    "rint": torch.round,
    "fast_expf": torch.exp,
    "fast_tanhf": torch.tanh,
    "pow": lambda x: x**3,
    "fma": lambda x: x * x - x,
    "isnan": lambda x: x.isnan().double(),
    "isinf": lambda x: x.isinf().double(),
    "tl.exp": torch.exp,
    "tl.erf": torch.erf,
    "tl.rsqrt": torch.rsqrt,
    "tl.sigmoid": torch.sigmoid,
    "asm": torch.tanh,
}
PLAIN = ("tanh", "erf", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos")
PLAIN += ("floor", "ceil", "trunc")


# Assembly is float32; float64 fma is tested against libm.
IN_FLOAT64 = [name for name in (*PLAIN, *REFERENCES) if name not in ("asm", "fma")]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in (*PLAIN, *REFERENCES)]
    + [(name, torch.float64) for name in IN_FLOAT64],
)
def test_libdevice_and_math(interpreted: Any, name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 1024, dtype=dtype)
    inf = float("inf")
    x[:6] = torch.tensor([0.0, -0.0, inf, -inf, float("nan"), 0.5])
    out = torch.empty_like(x)
    call_libdevice[(1,)](x, out, NAME=name, BLOCK=1024)
    want = REFERENCES.get(name, getattr(torch, name.split(".")[-1], None))(x.double())
    assert torch.equal(out.isnan(), want.isnan())
    unit = torch.finfo(dtype).eps * want.abs().clamp_min(torch.finfo(dtype).tiny)
    close = (out == want) | want.isnan() | ((out.double() - want).abs() <= 4 * unit)
    if name == "tl.sigmoid":  # exp, add and divide each round
        close |= (out.double() - want).abs() <= 16 * unit
    assert close.all(), (name, x[~close], out[~close], want[~close])
    if name in ("fma", "floor", "ceil", "rint", "trunc", "sqrt") and dtype == torch.float32:
        same(out, want.float())


def test_libdevice_refuses_what_it_cannot(interpreted: Any) -> None:
    x = torch.ones(16)
    with pytest.raises(NotImplementedError, match="clz runs only compiled"):
        call_libdevice[(1,)](x, x, NAME="clz", BLOCK=16)
    with pytest.raises(TypeError, match="tanh takes float32 or float64, got bf16"):
        call_libdevice[(1,)](x.bfloat16(), x.bfloat16(), NAME="tanh", BLOCK=16)
    with pytest.raises(NotImplementedError, match=r"the inline PTX 'lop3\.b32 \$0, "):
        call_libdevice[(1,)](x, x, NAME="asm?", BLOCK=16)
