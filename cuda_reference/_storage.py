"""Libraries on disk: written whole, and checked before they are used.

A library is named by its content and never changed. Beside it lies a record, a JSON file that
names it, with its size and its SHA-256. Each is written elsewhere, flushed to the disk and renamed
into place, the record last: no reader finds half of anything, and two builds of one library do
not disturb each other. What happens to the files afterwards (a full disk, a lost block, a copy that
was cut off) the check in find() sees: loading a truncated library would end the process. It costs
1 ms a MB: 0.1 ms for a library of the host target, 1 ms for one of the cuda target, once a process.

The cache of :mod:`cuda_reference._build` and the folders of :mod:`cuda_reference._shipped` are both
kept like that.
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
    """Puts a copy of ``built`` and its record where ``record`` says; returns the copy's path.

    Args:
        label: what the copy's name begins with.
        work: a folder as workspace() gives it, on the same disk.
        more: what else the record is to say.
    """
    content = built.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    library = record.with_name(f"{label}-{digest[:12]}{built.suffix}")
    about = {"library": library.name, "size": len(content), "sha256": digest, **more}
    write({library: content, record: (json.dumps(about, indent=2) + "\n").encode()}, work)
    return library


def find(record: Path) -> tuple[Path, dict[str, Any]]:
    """The library that a record names, and the record.

    Raises OSError or ValueError if there is none, or if library or record are damaged.
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
    """Makes files hold what is given, all or, where there is no room for it, none of them.

    Who reads one meanwhile finds the old or the new content. They appear in the order given.
    """
    names = {file: work / f"new-{number}" for number, file in enumerate(files)}
    for file, content in files.items():
        # Not to be written by group and others, whatever the umask.
        with open(names[file], "wb", opener=lambda path, flags: os.open(path, flags, 0o644)) as new:
            new.write(content)
            new.flush()
            os.fsync(new.fileno())  # else a crash could leave the new name on an empty file
    for file in files:
        os.replace(names[file], file)


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A new folder in ``folder``, for a while; those of processes that were killed are removed.

    A process holds a lock in its own. The lock goes with the process, and where hosts share a file
    system they see each other's.
    """
    with tempfile.TemporaryDirectory(
        dir=folder, prefix="build-", ignore_cleanup_errors=True
    ) as name:
        work = Path(name)
        with (work / _LOCK).open("w") as lock:
            with contextlib.suppress(OSError):  # no locks on this file system: nobody gets it then
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sweep(folder, work.stat().st_mtime)  # by the clock of the disk's host
            yield work


def _sweep(folder: Path, now: float) -> None:
    """Removes what workspace() made, nobody holds and nobody has changed for long.

    The time is for a folder that has no lock yet, and for file systems with locks of one host only.
    Folders of other people have other names or no lock file: ``folder`` may be anybody's.
    """
    for left in folder.glob("build-*"):
        try:
            if now - left.stat().st_mtime < _ABANDONED:
                continue
            with (left / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held, not to be told, or not ours
            continue
        shutil.rmtree(left, ignore_errors=True)
