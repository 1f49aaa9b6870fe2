"""Builds by torch.utils.cpp_extension, each in a folder of its own.

torch names the folder only by the module. If two processes load different sources with one name at
the same time, for example in the tests of two checkouts, both build in one folder and get the
library that was finished last. So here the folder's name also has a hash of the sources.
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
    """The result of torch.utils.cpp_extension.load with these arguments."""
    from torch.utils import cpp_extension

    texts = [Path(file).read_bytes() for file in arguments["sources"]]
    with _folder(arguments, texts) as folder:
        named = {**arguments, "build_directory": folder}
        return cpp_extension.load(**named, is_python_module=python_module)


def strings(arguments: Mapping[str, Any], python_module: bool) -> Any:
    """The result of torch.utils.cpp_extension.load_inline with these arguments."""
    from torch.utils import cpp_extension

    with _folder(arguments, []) as folder:
        # torch inserts into the lists that it is given
        lists = {name: list(x) for name, x in arguments.items() if isinstance(x, list)}
        named = {**arguments, **lists, "build_directory": folder}
        return cpp_extension.load_inline(**named, is_python_module=python_module)


@contextlib.contextmanager
def _folder(arguments: Mapping[str, Any], texts: list[bytes]) -> Iterator[str]:
    """The folder to build in: the requested one, or one for these sources, flags and GPUs.

    This process locks the latter. So torch's lock file in it belongs to a dead process, and is
    removed: torch would wait for it forever.
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
        with contextlib.suppress(OSError):  # without locks on this file system only torch's is used
            fcntl.flock(held, fcntl.LOCK_EX)
            (folder / "lock").unlink(missing_ok=True)
        yield str(folder)
