"""``python -m triton_kernels``: tune measures this GPU, capabilities prints the figures in use."""

from __future__ import annotations

import argparse
import sys

from triton_kernels.tuning import capabilities, tune


def main(words: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m triton_kernels")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in (
        ("tune", "measure this GPU, in at most five minutes, and keep the figures"),
        ("capabilities", "print the figures in use for tiles and scores, with their sources"),
    ):
        command = commands.add_parser(name, help=does, description=does)
        command.add_argument("--device", type=int, help="number of the GPU, else the current one")
    given = parser.parse_args(words)
    try:
        print(tune(given.device) if given.command == "tune" else capabilities(given.device))
    except (RuntimeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
