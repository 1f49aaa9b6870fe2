"""Libraries on disk: they are written in one step, and checked before they are used.

A library is named by the hash of its content and never changed. Beside it there is a record, a JSON
file with its name, its size and its SHA-256. Each file is written elsewhere, flushed to the disk
and renamed into place, the record last. So no reader finds half a file, and two builds of one
library do not disturb each other. Later damage (a full disk, a lost block, an incomplete copy) is
found by the check in find(): loading a truncated library would end the process. The check takes
1 ms per MB: 0.1 ms for a library of the host target, 1 ms for one of the cuda target, once per
process.

The cache of :mod:`cuda_reference._build` and the folders of :mod:`cuda_reference._shipped` both
have this form.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_LOCK = "crosscheck.lock"
_ABANDONED = 3600  # seconds without a change


def keep(built: Path, record: Path, label: str, work: Path, **more: Any) -> Path:
    """Put a copy of ``built`` beside ``record``, and write the record. Returns the copy's path.

    Args:
        label: the prefix of the copy's name.
        work: a folder of workspace() on the same disk.
        more: additional entries of the record.
    """
    content = built.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    library = record.with_name(f"{label}-{digest[:12]}{built.suffix}")
    about = {"library": library.name, "size": len(content), "sha256": digest, **more}
    write({library: content, record: (json.dumps(about, indent=2) + "\n").encode()}, work)
    return library


def find(record: Path) -> tuple[Path, dict[str, Any]]:
    """The library that a record names, and the record.

    Raises:
        OSError: the record or the library cannot be read.
        ValueError: one of them is damaged.
    """
    try:
        about = json.loads(record.read_bytes())
        library = record.parent / about["library"]
        expected = (about["size"], about["sha256"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"{record} is no record of a library: {error!r}") from error
    content = library.read_bytes()
    if (len(content), hashlib.sha256(content).hexdigest()) != expected:
        raise ValueError(f"{library} is damaged: its content is not what was built")
    return library, about


def write(files: Mapping[Path, bytes], work: Path) -> None:
    """Write files: all of them, or none if there is no room for all.

    A concurrent reader finds the old or the new content. The files are replaced in the given order.
    """
    names = {file: work / f"new-{number}" for number, file in enumerate(files)}
    for file, content in files.items():
        # Group and others cannot write the file, whatever the umask is.
        with open(names[file], "wb", opener=lambda path, flags: os.open(path, flags, 0o644)) as new:
            new.write(content)
            new.flush()
            os.fsync(new.fileno())  # otherwise a crash could leave an empty file of that name
    for file in files:
        os.replace(names[file], file)


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A temporary folder in ``folder``. Folders of killed processes are removed.

    A process holds a lock on a file in its folder. The lock ends with the process, and hosts that
    share a file system see each other's locks.
    """
    with tempfile.TemporaryDirectory(
        dir=folder, prefix="build-", ignore_cleanup_errors=True
    ) as name:
        work = Path(name)
        with (work / _LOCK).open("w") as lock:
            with contextlib.suppress(OSError):  # without locks here, no other process gets one
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sweep(folder, work.stat().st_mtime)  # the time by the file system's clock
            yield work


def _sweep(folder: Path, now: float) -> None:
    """Remove folders of workspace() that are not locked and have not changed for a long time.

    The time protects folders that have no lock yet, and folders on file systems whose locks only
    work on one host. ``folder`` may be shared with others: their folders have other names, or no
    lock file.
    """
    for left in folder.glob("build-*"):
        try:
            if now - left.stat().st_mtime < _ABANDONED:
                continue
            with (left / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # locked, unknown, or not ours
            continue
        shutil.rmtree(left, ignore_errors=True)
