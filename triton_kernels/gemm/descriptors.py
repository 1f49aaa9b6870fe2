"""Tensor descriptors for kernels that load by TMA."""

from __future__ import annotations

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

Block = list[int]


class Descriptor(TensorDescriptor):  # type: ignore[misc]
    """Triton's TensorDescriptor without its checks, which take most of its time. tma_compatible has
    made them."""

    def __post_init__(self) -> None:
        pass

    @property
    def kind(self) -> tuple[object, ...]:
        """A key with everything on which Triton's choice of a compiled kernel depends."""
        return Descriptor, self.base.dtype, *self.block_shape

    @staticmethod
    def of(matrix: Tensor, block: Block) -> Descriptor:
        return Descriptor(matrix, matrix.shape, matrix.stride(), block)
