"""What kernels by descriptors are called with."""

from __future__ import annotations

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

Block = list[int]


class Descriptor(TensorDescriptor):  # type: ignore[misc]
    """Triton's, without its checks, which take longer than the rest: tma_compatible did them."""

    def __post_init__(self) -> None:
        pass

    @staticmethod
    def of(matrix: Tensor, block: Block) -> Descriptor:
        return Descriptor(matrix, matrix.shape, matrix.stride(), block)


def strides_of(bias: Tensor | None, c: Tensor | None, out: Tensor) -> tuple[int, ...]:
    """As all kernels take them."""
    of_c = (0, 0) if c is None else c.stride()
    return (0 if bias is None else bias.stride(0), *of_c, *out.stride())
