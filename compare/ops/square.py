"""square and square_backward."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from compare.cases import Case, Level
from compare.specs.elementwise import ALL, DENSE, Elementwise

GRID_Y = 65535  # the most blocks along y; a block of variant 2d has 8 rows


class Square(Elementwise):
    """square with the CUDA side's variants: 1d takes dense tensors, 2d dense matrices."""

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """The cases of elementwise ops, and one with more rows than a grid of 2d has; on a GPU more
        than 2³¹ rows and columns."""
        yield from super().cases(dtype, level)
        if dtype != "uint8":
            return
        yield Case(self.name, dtype, (8 * GRID_Y + 1, 1))
        if level == "full" and torch.cuda.is_available():
            yield Case(self.name, dtype, (2**31 + 17, 1))
            yield Case(self.name, dtype, (1, 2**31 + 17))

    def takes(self, side: str, variant: str | None, case: Case) -> bool:
        """Whether a variant supports a case."""
        if variant not in ("1d", "2d"):
            return super().takes(side, variant, case)
        return case.lying <= DENSE and (variant != "2d" or len(case.shape) == 2)


SPECS = [
    Square("square", "x·x", lambda x: x * x, dtypes=ALL, eager=torch.square),
    Elementwise(
        "square_backward",
        "grad·(2·x)",
        lambda grad, x: grad * (x + x),
        flops=2,
        eager=lambda grad, x: grad * (2 * x),
        sizes_timed=(1024, 4096),
    ),
]
