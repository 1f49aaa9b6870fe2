"""How much memory a check may take on each device, and which cases that leaves out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from compare.cases import Case
from compare.checking.implementations import Implementation
from compare.checking.running import memory_asked
from compare.specs import Spec

ON = {"cpu": "the CPU", "cuda": "the GPU"}


class LeftOut(NamedTuple):
    """A case that did not run on a device; the bytes that it needs there and the bytes free."""

    case: Case
    device: str
    needs: int
    free: int


@dataclass(frozen=True)
class Budget:
    """The bytes that one case may take on the host and on a GPU."""

    host: int
    gpu: int

    @classmethod
    def here(cls, gigabytes: float | None, jobs: int) -> Budget:
        """The given gigabytes on each device, or what is free; on the host divided by ``jobs``."""
        if gigabytes is None:
            return cls(free_on_host() // jobs, free_on_gpu())
        budget = int(gigabytes * 1e9)
        return cls(budget // jobs, budget)

    def fitting(
        self, spec: Spec, case: Case, able: list[Implementation]
    ) -> tuple[list[Implementation], list[LeftOut]]:
        """The implementations on devices where the case fits, and a record per device where it does
        not."""
        left_out = []
        for device in dict.fromkeys(implementation.device for implementation in able):
            free = self.gpu if device.type == "cuda" else self.host
            if (needs := spec.memory(case, device)) > free:
                left_out.append(LeftOut(case, device.type, needs, free))
        without = {each.device for each in left_out}
        return [each for each in able if each.device.type not in without], left_out


def free_on_host() -> int:
    """Bytes that new processes can have without swapping: Linux's estimate, which includes caches
    that it can drop; on other systems free pages."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def free_on_gpu() -> int:
    """Free bytes, at most this process's share. 0 without a GPU, and where other processes leave
    too little memory even to ask."""
    if not torch.cuda.is_available():
        return 0
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError as error:
        if memory_asked(error) is None:
            raise
        return 0
    return min(free, int(torch.cuda.get_per_process_memory_fraction() * total))


def summaries(left_out: Sequence[LeftOut]) -> list[str]:
    """One line per device: "3 cases left out on the GPU: need 26 GB, 11 free"."""
    lines = []
    for device, where in ON.items():
        there = [each for each in left_out if each.device == device]
        if not there:
            continue
        fewest, most = (_gigabytes(f(each.needs for each in there)) for f in (min, max))
        needs = most if fewest == most else f"{fewest} to {most}"
        cases, need = ("case", "needs") if len(there) == 1 else ("cases", "need")
        free = _gigabytes(there[0].free)
        lines.append(f"{len(there)} {cases} left out on {where}: {need} {needs} GB, {free} free")
    return lines


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2g}" if size < 1e10 else f"{size / 1e9:.0f}"
