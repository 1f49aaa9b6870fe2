"""What torch.utils.cpp_extension builds, each in a folder of its own.

torch's folder bears the module's name and nothing else. Two processes that load different sources
of one name at once, say two checkouts under test, build in the same one, and both get the library
that was finished last. So the folder's name holds the sources here, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from cuda_reference import _compilers


def files(arguments: Mapping[str, Any], python_module: bool) -> Any:
    """What torch.utils.cpp_extension.load returns for these arguments."""
    from torch.utils import cpp_extension

    texts = [Path(file).read_bytes() for file in arguments["sources"]]
    with _folder(arguments, texts) as folder:
        named = {**arguments, "build_directory": folder}
        return cpp_extension.load(**named, is_python_module=python_module)


def strings(arguments: Mapping[str, Any], python_module: bool) -> Any:
    """What torch.utils.cpp_extension.load_inline returns for these arguments."""
    from torch.utils import cpp_extension

    with _folder(arguments, []) as folder:
        # torch inserts into the lists that it is given
        lists = {name: list(x) for name, x in arguments.items() if isinstance(x, list)}
        named = {**arguments, **lists, "build_directory": folder}
        return cpp_extension.load_inline(**named, is_python_module=python_module)


@contextlib.contextmanager
def _folder(arguments: Mapping[str, Any], texts: list[bytes]) -> Iterator[str]:
    """The folder to build in: the one that is asked for, or one for these sources, flags and GPUs.

    The latter is held for this process, so that a lock which lies there is a dead process's: torch
    would wait for it without end.
    """
    if arguments["build_directory"] is not None:
        yield arguments["build_directory"]
        return
    gpus = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
    versions = (torch.__version__, sys.implementation.cache_tag, gpus)
    given = {name: value for name, value in arguments.items() if name != "verbose"}
    key = repr((versions, os.environ.get("TORCH_CUDA_ARCH_LIST"), given, texts))
    digest = hashlib.sha256(key.encode()).hexdigest()
    folder = _compilers.cache_directory("torch", f"{arguments['name']}-{digest[:12]}")
    with (folder / "crosscheck.lock").open("w") as held:
        with contextlib.suppress(OSError):  # no locks on this file system: torch's own then
            fcntl.flock(held, fcntl.LOCK_EX)
            (folder / "lock").unlink(missing_ok=True)
        yield str(folder)
