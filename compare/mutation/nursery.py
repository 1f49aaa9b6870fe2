"""A process that has imported torch and triton and forks for each trial, since importing them takes
longer than most trials.

It reads a line of JSON per trial from stdin, and prints the exit status. It is run as a file and
imports nothing of this project: a trial imports the packages in its own folder.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import traceback

LOADED = [
    *("numpy", "torch", "triton", "triton.language", "rich.progress", "rich.table", "typer"),
    # What torch imports at its first broadcast, with sympy; and what compare imports.
    *("torch.fx.experimental.symbolic_shapes", "torch.utils.flop_counter"),
    *("triton.runtime.interpreter", "triton.experimental.gluon.language"),
]


def serve() -> None:
    """Fork a child for every line, one after the other."""
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()  # so that trials do not collect all that is loaded
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _trial(**json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _trial(folder: str, output: str, environment: dict[str, str], words: list[str]) -> None:
    """Run ``python -m WORDS`` in the folder, with output to a file. Does not return."""
    status = 1
    try:
        written = os.open(output, os.O_WRONLY | os.O_CREAT)
        for number, wanted in enumerate((os.open(os.devnull, os.O_RDONLY), written, written)):
            os.dup2(wanted, number)
        os.environ.update(environment)
        os.chdir(folder)
        sys.path.insert(0, folder)
        module, *arguments = words
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except BaseException as error:  # noqa: BLE001 - this process must end here in any case
        traceback.print_exception(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
