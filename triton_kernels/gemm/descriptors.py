"""What kernels by descriptors are called with."""

from __future__ import annotations

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

Block = list[int]


class Descriptor(TensorDescriptor):  # type: ignore[misc]
    """Triton's, without its checks, which take longer than the rest: tma_compatible did them."""

    def __post_init__(self) -> None:
        pass

    @property
    def kind(self) -> tuple[object, ...]:
        """What Triton's choice of a compiled kernel depends on; all else is as by default."""
        return Descriptor, self.base.dtype, *self.block_shape

    @staticmethod
    def of(matrix: Tensor, block: Block) -> Descriptor:
        return Descriptor(matrix, matrix.shape, matrix.stride(), block)
