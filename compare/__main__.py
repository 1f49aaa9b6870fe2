"""``python -m compare``, also installed as ``kernel-compare``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    """The command line. If torch, triton or another package is broken, only the doctor runs."""
    # Set before numpy reads it: the split of a product over threads changes its last bits, and a
    # report must not depend on the number of cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from compare.cli import app
    except Exception as error:
        if sys.argv[1:2] == ["doctor"]:
            _doctor()
        hint = "`python -m compare doctor` says what is wrong and what to do"
        if isinstance(error, ImportError):
            sys.exit(f"cannot start: {error}\n{hint}")
        error.add_note(hint)
        raise
    app(prog_name="python -m compare")


def _doctor() -> None:
    """The doctor of compare.cli, without compare.cli and without typer."""
    from compare.doctor.diagnosis import examine

    parser = argparse.ArgumentParser(prog="python -m compare doctor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Also write the findings there.")
    sys.exit(examine(parser.parse_args(sys.argv[2:]).json))


if __name__ == "__main__":
    main()
