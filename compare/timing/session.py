"""A benchmark run: the device, its ceilings, the saved cases. bench and pytest share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from compare.checking.running import memory_asked
from compare.timing import bench, gpu, nvml, providers
from compare.timing.bench import Mode, Work
from compare.timing.engine import Budget, Device, DeviceLostError
from compare.timing.gpu import Ceilings
from compare.timing.results import CaseResult
from compare.timing.saved import Saved

Made = TypeVar("Made")


class Session:
    """Times cases that are not saved yet, and saves them."""

    def __init__(self, saved: Saved, mode: Mode, budget: Budget) -> None:
        self.saved, self._mode, self._budget = saved, mode, budget
        self._device: Device | None = None

    @property
    def ceilings(self) -> Ceilings:
        """The device's ceilings, measured once and saved beside the cases."""
        head = self.saved.head
        if head["ceilings"] is None:
            head["state_before"] = nvml.state()
            head["ceilings"] = _fitting(gpu.ceilings).to_dict()
        return Ceilings.from_dict(head["ceilings"])

    def known(self, work: Work) -> CaseResult | None:
        """The saved result of the case, if there is one."""
        return self.saved.known(CaseResult(work.case, 0.0, "", sweep=work.sweep, x=work.x))

    def measure(
        self,
        work: Work,
        names: Sequence[str],
        tick: Callable[[str], None] = lambda name: None,
        budget: Budget | None = None,
    ) -> CaseResult:
        """Time these providers on a case with the session's or the given budget, and save it.

        Raises:
            DeviceLostError: the GPU answers no more calls after an error; the head says so.
            NoMemoryError: the GPU has no memory left for the measurement.
        """
        if self._device is None:
            self._device = _fitting(gpu.Gpu)
        ceilings, (spec, case, sweep, x, stratum) = self.ceilings, work
        within = budget or self._budget
        try:
            with providers.torchs_precision(case):
                result = bench.run_case(
                    *(spec, case, names, self._device, ceilings, within, tick, self._mode),
                    drawn=bool(stratum),
                )
        except DeviceLostError as error:
            self.end(f"the GPU no longer answers; {case.op} {case.dtype} {case.shape}, {error}")
            raise
        result.sweep, result.x = sweep, x
        result.stratum, result.again = stratum, bool(stratum) and budget is None
        self.saved.head["state_after"] = result.state_after
        self.saved.add(result)
        torch.cuda.empty_cache()
        return result

    def end(self, why: str) -> None:
        """Record why the run ended early."""
        self.saved.head["ended"] = why
        self.saved.write()


def _fitting(made: Callable[[], Made]) -> Made:
    """Make something that needs GPU memory before the first case."""
    try:
        return made()
    except RuntimeError as error:
        if (asked := memory_asked(error)) is None:
            raise
        raise gpu.NoMemoryError(asked) from error
