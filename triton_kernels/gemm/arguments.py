"""The arguments of a matrix product's launch."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from triton_kernels._launch import specialization_key
from triton_kernels._scalars import as_argument


class Gemm(NamedTuple):
    """out = act(alpha·(a@b) + beta·c + bias), with checked arguments.

    Attributes:
        op: the op's name; its first word is the prefix of kernels' names in profiles.
        a, b: [M, K] and [K, N].
        bias: [N], or None.
        c: [M, N], already expanded, or None.
        out: [M, N], written.
        act, alpha, beta, precision: as in gemm_bias_act.
        pre: gets the result before the activation; has out's dtype and strides; or None.
    """

    op: str
    a: Tensor
    b: Tensor
    bias: Tensor | None
    c: Tensor | None
    out: Tensor
    act: str
    alpha: float
    beta: float
    precision: str
    pre: Tensor | None = None

    @property
    def prefix(self) -> str:
        """The prefix of kernels' names in profiles."""
        return self.op.partition("_")[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        M, N = self.out.shape
        return M, N, self.a.shape[1]

    @property
    def strides(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The strides of bias, c and out for kernels; 0 for a missing tensor."""
        c = (0, 0) if self.c is None else self.c.stride()
        return 0 if self.bias is None else self.bias.stride(0), c, self.out.stride()

    @property
    def scalars(self) -> tuple[Any, Any]:
        """alpha and beta as kernel arguments."""
        return as_argument(self.alpha, self.a.dtype), as_argument(self.beta, self.a.dtype)

    def keys(self, a: Tensor, b: Tensor) -> tuple[Any, ...]:
        """The specialization keys of the tensors, where a and b may be copies of the operands."""
        return tuple(map(specialization_key, (a, b, self.bias, self.c, self.out, self.pre)))
