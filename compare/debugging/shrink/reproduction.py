"""A failing case as a Python file that needs only torch and triton.

The launches of one interpreted run are recorded with their initial memory. The file makes that
memory, contains the kernels' source, launches them, and checks the result. A child process runs it
in Triton's own interpreter; if it fails there in the same way, it needs nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compare.cases import CPU
from compare.checking.stores import Stores
from compare.copies import WHOLE, copy_elements, tensors
from compare.debugging.findings.findings import Findings
from compare.debugging.shrink.expectations import Expected, expectations
from compare.debugging.shrink.literals import Unwritable
from compare.debugging.shrink.scripts import MARK, MODES, Mode, script, view_key, viewed
from compare.debugging.shrink.shrunk import Reproduction
from compare.debugging.shrink.signatures import signatures
from compare.debugging.subjects import Result, Subject
from triton_kernels import interpreter
from triton_kernels.interpreter import Launch, Several

TIMEOUT = 300  # seconds that the file may take


class Recorder(Stores):
    """Records stores, and the memory of every tensor before its first launch. Of a large storage
    only the elements are kept, because gigabytes may lie between them."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, Tensor] = {}  # by the storage's address
        self._views: set[Any] = set()

    def launch(self, launch: Launch) -> None:
        super().launch(launch)
        for t in tensors(dict(launch.values)):
            storage = t.untyped_storage()
            if storage.data_ptr() not in self.before:
                raw = torch.empty(0, dtype=torch.uint8).set_(storage)
                whole = raw.numel() <= WHOLE
                self.before[storage.data_ptr()] = raw.clone() if whole else torch.empty_like(raw)
            if storage.nbytes() > WHOLE and view_key(t) not in self._views:
                self._views.add(view_key(t))
                copy_elements(viewed(self.before[storage.data_ptr()], t), t)


def check_output(file: Path) -> None:
    """Refuse a path that cannot be written, or a file that this project did not write.

    Raises:
        ValueError: with the reason.
    """
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{file}: cannot write there")
    if file.exists():
        with file.open(errors="replace") as opened:
            if opened.readline().rstrip() != MARK:
                raise ValueError(
                    f"{file}: there is such a file, and not one of ours: give another name"
                )


def reproduce(subject: Subject, findings: Findings, output: Path | None) -> Reproduction:
    """The file for a failing subject, after a trial run; also written to ``output`` if given."""
    recorder, results = Recorder(), list[Result]()
    state = subject.prepare(CPU)
    try:
        with interpreter.interpreting(Several(recorder)):
            subject.launch(state)
        results = subject.judge(state, recorder)
    except Exception:  # noqa: BLE001 - the failure to reproduce
        arguments = [a for launch in recorder.launches for a in launch.arguments]
        with contextlib.suppress(Exception):  # else the file checks no result
            results = subject.expect(state, arguments)
    try:
        if not recorder.launches:
            raise Unwritable("no kernel was launched")
        expected = expectations(results, recorder.launches, subject.in_ulps)
        reproduced = _tried(recorder, findings, expected)
    except Unwritable as reason:
        return Reproduction("", str(reason))
    if output is not None:
        _write(output, reproduced.text)
        reproduced.file = output
    return reproduced


def _tried(recorder: Recorder, findings: Findings, expected: list[Expected]) -> Reproduction:
    """The file with the fewest requirements among those that fail in the right way."""
    text, last = "", ""
    for mode in MODES:
        if mode == "debug" and not findings.hazards:
            continue
        text = script(recorder.launches, recorder.before, findings, expected, mode)
        last = _run(text)
        if _as_it_should(last, findings, expected, mode):
            return Reproduction(text, _HOW[mode])
    reason = last.strip().splitlines()[-1] if last.strip() else "it passes"
    return Reproduction(text, f"but it does not fail as it should: {reason}")


_HOW: dict[Mode, str] = {
    "plain": "reproduces under TRITON_INTERPRET=1: yes",
    "mended": "reproduces only in the mended interpreter: the file imports triton_kernels",
    "debug": "reproduces only under sanitizers: the file imports compare",
}


def _run(text: str) -> str:
    """The stderr of a file that fails in Triton's own interpreter; "" if it passes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reproduction.py"
        file.write_text(text)
        path = os.pathsep.join(p for p in sys.path if p)
        settings = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
        try:
            ran = subprocess.run(
                [sys.executable, str(file)],
                env=settings,
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return f"it took longer than {TIMEOUT} s"
    if ran.returncode < 0:
        return f"{ran.stderr}\nended by signal {-ran.returncode}"
    return ran.stderr or "it failed in silence" if ran.returncode else ""


_MESSAGE = re.compile(r"AssertionError: (\S+\[.*\]) is (\S+), expected (\S+); (\d+) of")


def _as_it_should(stderr: str, findings: Findings, expected: list[Expected], mode: Mode) -> bool:
    """Whether a child process failed in the same way as the case."""
    if mode == "debug":
        return "AssertionError" in stderr and findings.hazards[0].kind in stderr
    if findings.failure is not None:
        kind, what = signatures(findings)[0].what
        access = re.fullmatch(r"out-of-bounds ([\w ]+) through (\w+)", what)
        if mode == "plain" and access:
            if access[1] == "load":  # of a NaN that the file puts there
                return bool(_MESSAGE.search(stderr))
            return f"around {access[2]} were overwritten" in stderr
        return bool(re.search(rf"\b{kind}\b", stderr)) and (
            not what.startswith("out-of-bounds") or what in stderr
        )
    here = next((m for m in (e.message() for e in expected) if m), "")
    ours, theirs = _MESSAGE.search(here), _MESSAGE.search(stderr)
    if ours is None or theirs is None:
        return False
    same = ours[1] == theirs[1] and ours[4] == theirs[4]
    return same and _near(float(ours[2]), float(theirs[2]))


def _near(a: float, b: float) -> bool:
    """Whether two wrong numbers are equal except for rounding."""
    return a == b or (a != a and b != b) or abs(a - b) <= 0.01 * max(abs(a), abs(b))


def _write(file: Path, text: str) -> None:
    """Write the whole file or none of it."""
    check_output(file)
    handle, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
