"""One model on the GPU: its time under the backend "triton_kernels", torch.compile and eager.

The backend leaves the rest to Inductor, as torch.compile does everything, so that the ratio of the
two is what the fused kernels gain. torch.compile is timed a second time as a control. Run as a
program, this module times one model in a process of its own; :mod:`compare.models.processes` starts
it.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from compare.cases import DTYPES
from compare.models.making import Made, named, targeted
from compare.timing import engine
from compare.timing.bench import off_by_norm
from compare.timing.engine import Budget, Candidate, Timing
from compare.timing.gpu import Gpu
from triton_kernels.graph.capabilities import MIN_SCORE
from triton_kernels.graph.logs import NAME as LOGGER

OURS, INDUCTOR, EAGER = "triton", "compile", "eager"
SAMPLES = Budget(samples=40, seconds=6.0)
READY = "ready"  # what the program prints when everything is compiled
WORSE = 2.0  # times eager's error that a compiled model's may be
NOTHING = 1e-3  # an error that is none, relative to the result's norm
CLOSE = 0.05  # how far a loss, and a gradient's norm, may be from eager's: dropout is random


@dataclass(frozen=True)
class Request:
    """What to time.

    Attributes:
        name: one of the architectures, or module:factory.
        dtype: of an architecture; a target's model is taken as it is.
        layers: of an architecture.
        training: whether to time a training step.
        min_score: as :func:`triton_kernels.fuse` takes it.
    """

    name: str
    dtype: str = "bfloat16"
    layers: int = 4
    training: bool = False
    min_score: float = MIN_SCORE

    def make(self) -> Made:
        """The model on the GPU, in the mode that is asked for."""
        if ":" in self.name:
            made = targeted(self.name)
            args, keywords = tree_map(_moved, (made.args, made.keywords))
            made = Made(made.model.to("cuda"), args, keywords)
        else:
            made = named(self.name, DTYPES[self.dtype], "cuda", self.layers)
        return made._replace(model=made.model.train(self.training))


def _moved(value: Any) -> Any:
    return value.to("cuda") if isinstance(value, Tensor) else value


class Runners:
    """A model under eager, torch.compile and the backend, forward or as a training step."""

    def __init__(self, request: Request) -> None:
        self._training = request.training
        self._wide: Tensor | None = None
        self.made = request.make()
        options: dict[str, Any] = {"rest": "inductor", "min_score": request.min_score}
        model = self.made.model
        self.models: dict[str, Callable[..., Any]] = {
            EAGER: model,
            INDUCTOR: torch.compile(model),
            OURS: torch.compile(model, backend="triton_kernels", options=options),
        }
        # The rate changes nothing that matters to the time, and nothing grows.
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def candidates(self) -> list[Candidate]:
        """One call each: a forward pass, or a step with AdamW."""
        call = self._step if self._training else self._forward
        return [Candidate(name, lambda name=name: call(name)) for name in self.models]

    def wrong(self) -> dict[str, str]:
        """Candidate → what is wrong with its results. This compiles everything."""
        wrong = self._wrong_gradients if self._training else self._wrong_results
        return {name: said for name in self.models if (said := wrong(name))}

    def _forward(self, name: str) -> Tensor:
        with torch.no_grad():
            return self._call(name)

    def _call(self, name: str) -> Tensor:
        return _result(self.models[name](*self.made.args, **self.made.keywords))

    def _step(self, name: str) -> Tensor:
        loss = self._loss(name)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def _loss(self, name: str) -> Tensor:
        return self._call(name).float().square().mean()

    def _wrong_results(self, name: str) -> str:
        """Beside the same model in float32: no more wrong than eager, by the norm of the error."""
        if self._wide is None:
            model = copy.deepcopy(self.made.model).float()
            args, keywords = tree_map(_widened, (self.made.args, self.made.keywords))
            with torch.no_grad():
                self._wide = _result(model(*args, **keywords))
        error, eager = (off_by_norm(self._forward(n), self._wide) for n in (name, EAGER))
        if error <= max(WORSE * eager, NOTHING):
            return ""
        return f"wrong: off by {error:.1e} of its norm, eager by {eager:.1e}"

    def _wrong_gradients(self, name: str) -> str:
        """The loss, and the norm of all gradients, are eager's but for dropout."""
        for what, own, eager in zip(("loss", "gradients"), self._pass(name), self._pass(EAGER)):
            if not math.isclose(own, eager, rel_tol=CLOSE):
                return f"wrong: {what} of norm {own:.4g}, eager's {eager:.4g}"
        return ""

    def _pass(self, name: str) -> tuple[float, float]:
        loss = self._loss(name)
        loss.backward()
        gradients = [p.grad for p in self.made.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self._optimizer.zero_grad()
        return float(loss.detach()), float(norm)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _result(returned: Any) -> Tensor:
    """The first floating-point tensor of what a model returns."""
    for value in tree_leaves(returned):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise TypeError("the model returns no floating-point tensor")


class _NoGraphs(Gpu):
    """A GPU that captures nothing: a captured training step would change what follows it."""

    def graph(self, call: Callable[[], Any]) -> None:
        """None."""


class _Kernels(logging.Handler):
    """Counts the kernels in the plans that are logged."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        args: Any = record.args  # as graph.logs.note gives them
        self.count += args[1]


def timed(request: Request, wait: Callable[[], None]) -> dict[str, Any]:
    """Compile a model, check its results, call ``wait``, and time it.

    Returns the number of fused kernels and the timings, ready for JSON.
    """
    kernels = _Kernels()
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(kernels)
    logger.propagate = False
    runners = Runners(request)
    wrong = runners.wrong()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # other processes compile, too
    wait()
    right = [each for each in runners.candidates() if each.name not in wrong]
    timings = engine.measure(
        right, [()], _NoGraphs(), lambda candidate, result, inputs: "", SAMPLES, twice=(INDUCTOR,)
    )
    timings += [Timing(name, problem=problem) for name, problem in wrong.items()]
    return {"kernels": kernels.count, "timings": [asdict(each) for each in timings]}


def main(words: Iterable[str]) -> None:
    """Time the model of a request in JSON. Prints a line when it is compiled, waits for a line of
    input, and prints the result in JSON."""

    def wait() -> None:
        print(READY, flush=True)
        sys.stdin.readline()

    (text,) = words
    print(json.dumps(timed(Request(**json.loads(text)), wait)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
