"""tl.dot_scaled: formats, scales and packing, with Tritons whose own interpreter lacks it, too."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from compare import debug

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = torch.cat([E2M1, -E2M1]).double()


@triton.jit
def scaled_kernel(
    a_ptr, a_scale, b_ptr, b_scale, out_ptr, M: tl.constexpr, N: tl.constexpr, KA: tl.constexpr,
    KB: tl.constexpr, GROUPS: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    B_SCALED: tl.constexpr, K_PACK: tl.constexpr,
):  # fmt: skip
    m, n, group = tl.arange(0, M), tl.arange(0, N), tl.arange(0, GROUPS)
    rows, columns = tl.arange(0, M if K_PACK else M // 2), tl.arange(0, N if K_PACK else N // 2)
    a = tl.load(a_ptr + rows[:, None] * KA + tl.arange(0, KA))
    b = tl.load(b_ptr + columns[None, :] * KB + tl.arange(0, KB)[:, None])
    of_a = tl.load(a_scale + m[:, None] * GROUPS + group)
    of_b = None
    if B_SCALED:
        of_b = tl.load(b_scale + n[:, None] * GROUPS + group)
    acc = tl.full((M, N), 1.0, tl.float32)
    out = tl.dot_scaled(
        a, of_a, A, b, of_b, B, acc, lhs_k_pack=K_PACK, rhs_k_pack=K_PACK, out_dtype=tl.float32
    )
    tl.store(out_ptr + m[:, None] * N + n, out)


def unpacked(x: torch.Tensor, form: str, along_k: bool = True) -> torch.Tensor:
    if form != "e2m1":
        return x.double()
    both = torch.stack([E2M1[(x & 15).long()], E2M1[(x >> 4).long()]], -1 if along_k else 1)
    return both.flatten(1) if along_k else both.flatten(0, 1)


@pytest.mark.parametrize(
    ("a_form", "b_form", "group", "k_pack"),
    [
        ("e4m3", "e4m3", 32, True),
        ("e5m2", "bf16", 32, True),
        ("e2m1", "e4m3", 32, True),
        ("e2m1", "e2m1", 16, True),
        ("e2m1", "e2m1", 32, False),
    ],
)
def test_scaled_products(
    a_form: str, b_form: str, group: int, k_pack: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if a_form == b_form == "e2m1":  # GPUs before Blackwell cannot compile it
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    g = torch.Generator().manual_seed(0)
    sizes, K = (16, 32), 64
    dtypes = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}

    def operand(size: int, form: str) -> torch.Tensor:
        if form == "e2m1":
            shape = (size, K // 2) if k_pack else (size // 2, K)
            return torch.randint(0, 256, shape, generator=g, dtype=torch.uint8)
        return torch.randn(size, K, generator=g).to(dtypes[form])

    def scales(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        if group == 16:
            scale = torch.rand(size, K // group, generator=g).to(torch.float8_e4m3fn)
            return scale, scale.double()
        scale = torch.randint(120, 134, (size, K // group), generator=g, dtype=torch.uint8)
        return scale, torch.exp2(scale.double() - 127)

    a, b = operand(sizes[0], a_form), operand(sizes[1], b_form)
    (a_scale, of_a), (b_scale, of_b) = map(scales, sizes)
    scaled = b_form != "bf16"
    left = unpacked(a, a_form, k_pack) * of_a.repeat_interleave(group, 1)
    right = unpacked(b, b_form, k_pack)
    right = right * of_b.repeat_interleave(group, 1) if scaled else right
    found = debug(
        scaled_kernel,
        (1,),
        (a, a_scale, b, b_scale, torch.zeros(sizes)),
        oracle=lambda: left @ right.T + 1,
        bound=lambda *_: 1e-5 * (left.abs() @ right.abs().T + 1),
        M=16, N=32, KA=a.shape[1], KB=b.shape[1], GROUPS=K // group, A=a_form, B=b_form,
        B_SCALED=scaled, K_PACK=k_pack,
    )  # fmt: skip
    assert found, found
