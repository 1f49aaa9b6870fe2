"""A small MLP on handwritten digits, trained twice from the same weights: by torch, and by ours.

    python examples/mlp_train.py --steps 40 --hidden 32 --out mlp_train.svg

Needs scikit-learn, for the digits, and matplotlib: the extra `examples`. The second model is a copy
of the first after triton_kernels.replace_modules; both see the same batches in float32. Prints both
losses, their largest difference and the accuracy on held-out digits, and plots the curves. The
defaults are for the CPU, where Triton's interpreter runs the kernels; a GPU gets more of both.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import triton_kernels as tk

try:
    from matplotlib.figure import Figure
    from sklearn.datasets import load_digits
except ImportError as missing:
    sys.exit(f"{missing}: python -m pip install scikit-learn matplotlib")

BATCH, HELD_OUT = 64, 297
# The two differ in the order in which they add the terms of a product: by some units in the last
# place of float32 in the first step, by some more in each that starts from the one before.
LARGEST_DIFFERENCE = 1e-4  # relative to the loss


def main() -> None:
    """Train both, compare, plot."""
    on_gpu = torch.cuda.is_available()
    options = arguments(*(400, 1024) if on_gpu else (40, 32))
    torch.manual_seed(0)
    images, labels = digits("cuda" if on_gpu else "cpu")
    model = nn.Sequential(nn.Linear(64, options.hidden), nn.GELU(), nn.Linear(options.hidden, 10))
    model = model.to(images.device)
    ours = copy.deepcopy(model)
    with contextlib.nullcontext() if on_gpu else tk.interpret():
        # By default float32 layers are left to cuBLAS, which is faster: 0 takes them all the same.
        report = tk.replace_modules(ours, min_score=0)
        print(report)
        assert report.replaced, "nothing was replaced: torch would be compared with itself"
        losses, seen = [], (images[HELD_OUT:], labels[HELD_OUT:])
        steps = zip(train(model, *seen, options.steps), train(ours, *seen, options.steps))
        for number, pair in enumerate(steps, start=1):
            losses.append(pair)
            if number % max(1, options.steps // 6) == 0:
                print("step {:4}: loss {:.6f} by torch, {:.6f} by ours".format(number, *pair))
        accuracies = [accuracy(m, images[:HELD_OUT], labels[:HELD_OUT]) for m in (model, ours)]
    difference = max(abs(a - b) / a for a, b in losses)
    print(f"largest difference of the losses: {difference:.1e} of the loss, from rounding")
    print("right on held-out digits: {:.1%} by torch, {:.1%} by ours".format(*accuracies))
    plot(losses, options.out)
    print(f"curves: {options.out}")
    assert difference <= LARGEST_DIFFERENCE, "the two trainings went apart"
    assert abs(accuracies[0] - accuracies[1]) <= 0.01, "they do not classify alike"


def arguments(steps: int, hidden: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--hidden", type=int, default=hidden, help="features between the layers")
    parser.add_argument("--out", default="mlp_train.svg", help="file of the plot")
    return parser.parse_args()


def digits(device: str) -> tuple[Tensor, Tensor]:
    """1797 images of 8×8 greys from 0 to 1, in random order, and the digits they show."""
    images, labels = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    order = torch.randperm(len(labels))
    return (images[order] / 16).to(device, torch.float32), labels[order].to(device)


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> Iterator[float]:
    """The loss of each step, on batches that are the same for every model."""
    # Plain descent: Adam divides by the gradient's size, and so makes rounding of tiny ones large.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    drawing = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = torch.randint(len(labels), (BATCH,), generator=drawing).to(images.device)
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return (model(images).argmax(1) == labels).float().mean().item()


def plot(losses: list[tuple[float, float]], path: str) -> None:
    axes = (figure := Figure(layout="constrained")).add_subplot()  # no pyplot: no window, no state
    for curve, name, style in zip(zip(*losses), ("torch", "triton_kernels"), ("-", "--")):
        axes.plot(range(1, len(curve) + 1), curve, style, label=name)
    axes.set(xlabel="step", ylabel="cross entropy of the batch")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
