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
