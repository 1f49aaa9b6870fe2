"""The meaning of a compiler's error, in one sentence."""

from __future__ import annotations

import re

_HINTS = {
    r"[Ff]eature '([^']+)' requires \.target (sm_\w+)": (
        "its PTX uses {0}, which only GPUs from {1} on have; inline_asm_elementwise is passed to "
        "ptxas as it is"
    ),
    r"ptxas \S+, line \d+; error\s*: (.*)": (
        "ptxas refuses the PTX, most often that of an inline_asm_elementwise, which Triton passes "
        "on as it is: {0}"
    ),
    r"type (fp8\w+) not supported in this architecture": (
        "this GPU does not convert to {0}: use one of those that the error lists, or convert "
        "outside the kernel"
    ),
    r"out of resource: shared memory": (
        "the tiles of all stages need more shared memory than there is: make them smaller, or "
        "num_stages"
    ),
}


def hint(error: BaseException) -> str:
    """A sentence about a known error whose own text says little, else an empty string."""
    for pattern, sentence in _HINTS.items():
        if match := re.search(pattern, str(error)):
            return sentence.format(*match.groups())
    return ""
