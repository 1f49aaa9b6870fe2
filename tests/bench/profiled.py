"""What the tests of profile share: traces of made-up events and an ncu that answers as told."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from compare.cli import app


class FakeCuda:
    """torch.cuda as run_in_ranges needs it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.profiler = self.nvtx = self

    def synchronize(self) -> None:
        self.log.append("wait")

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")

    @contextmanager
    def range(self, name: str) -> Any:
        self.log.append(f"<{name}")
        yield
        self.log.append(f"{name}>")


def event(cat: str, name: str, ts: float, dur: float, correlation: int | None = None) -> Any:
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


# As `ncu --csv --page raw` prints it: what it says itself, names, units, a line a launch.
RAW = """==PROF== Connected to process 7 (/usr/bin/python3.12)
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","dram__bytes.sum",\
"dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum",\
"launch__registers_per_thread","lts__t_sector_hit_rate.pct",\
"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","byte","%","ns","register/thread","%","%","%","%"
"0","7","python3.12","127.0.0.1","void mul<float, 4>(int, float *)","1","7","(128, 1, 1)",\
"(8,192, 1, 1)","0","9.0","16,777,216","71.50","5,120","26","33.40","0","41.20","88.75"
"1","7","python3.12","127.0.0.1","relu","1","7","(128, 1, 1)","(64, 1, 1)","0","9.0",\
"1,000,000","50","2,000","16","n/a","0","10","50"
"2","7","python3.12","127.0.0.1","relu","1","7","(128, 1, 1)","(64, 1, 1)","0","9.0",\
"3,000,000","70","4,000","16","40","0","20","70"
"""


FAKE_NCU = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
if "--import" in words:
    print(pathlib.Path({csv!r}).read_text())
    sys.exit()
metrics = words[words.index("--metrics") + 1].split(",")
unknown = [m for m in metrics if m in {unknown!r}]
if {says!r} or unknown:
    print("==PROF== Connected to process 1 (python)")
    for metric in unknown:
        print("==ERROR== Failed to find metric regex:^" + metric.replace(".", "\\\\.") + "$")
    print({says!r})
    sys.exit({status})
pathlib.Path(words[words.index("--export") + 1]).write_text("report")
print("==PROF== Disconnected from process 1")
"""


class Ncu:
    """An ncu that answers what a test wants, first on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, folder / "log"
        self.bin = folder / "bin"
        self.bin.mkdir()
        monkeypatch.setenv("PATH", str(self.bin))
        self.answers()

    def answers(
        self, says: str = "", csv: str = RAW, status: int = 1, unknown: tuple[str, ...] = ()
    ) -> None:
        (self.folder / "csv").write_text(csv)
        text = FAKE_NCU.format(
            python=sys.executable, log=str(self.log), csv=str(self.folder / "csv"), says=says,
            status=status, unknown=unknown,
        )  # fmt: skip
        tool = self.bin / "ncu"
        tool.write_text(text)
        tool.chmod(0o755)

    def commands(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def profile(*words: str) -> Result:
    return CliRunner().invoke(app, ["profile", *words])
