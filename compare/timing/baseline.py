"""A file of bench --json as what later runs must not be slower than."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compare.timing.bench import Mode
from compare.timing.engine import CONTROL
from compare.timing.providers import is_peer
from compare.timing.results import geometric_mean, key


class BaselineError(ValueError):
    """A file that a run cannot be compared with."""


def read(file: Path, mode: Mode) -> list[dict[str, Any]]:
    """The cases of a file.

    Raises:
        BaselineError: it is no such file, or was measured in another way.
    """
    try:
        saved = json.loads(file.read_text())
        cases: list[dict[str, Any]] = saved["cases"]
        then = Mode(saved.get("cold", True), saved.get("graph", False))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise BaselineError(f"no file of bench --json ({error})") from None
    if then != mode:
        raise BaselineError(f"it holds times {_way(then)}, this run takes them {_way(mode)}")
    return cases


def _way(mode: Mode) -> str:
    cache = "with a cold cache" if mode.cold else "with a warm cache (--warm)"
    return cache + (" of CUDA graphs (--graph)" if mode.graph else "")


def regressions(
    results: list[dict[str, Any]], baseline: list[dict[str, Any]], threshold: float
) -> list[str]:
    """Where one of ours takes longer than in the baseline, by more than the threshold.

    Times are compared as multiples of the peer that was best then, if it was timed both times:
    that cancels the machine's state. Else the medians are compared. Of a sample every stratum is
    compared as one, by the geometric mean over the problems that both have: of a single problem
    the short look of a sample tells less than the threshold.
    """
    lines = []
    strata: dict[tuple[str, ...], list[float]] = {}
    before = {key(case): case for case in baseline}
    for case in results:
        old = before.get(key(case))
        if old is None:
            continue
        then, now = _medians(old), _medians(case)
        peer = old["best_peer"]
        drift = now[peer] / then[peer] if peer in then and peer in now else 1.0
        for provider in now:
            if is_peer(provider) or provider == CONTROL or provider not in then:
                continue
            times = now[provider] / then[provider] / drift
            slower = times - 1
            if case.get("stratum"):
                strata.setdefault((case["op"], case["stratum"], provider), []).append(times)
            elif slower > threshold:
                name = f"{case['op']} {case['dtype']} {'×'.join(map(str, case['shape']))}"
                lines.append(f"{name}, {provider}: {100 * slower:.0f} % slower than the baseline")
    for (op, stratum, provider), all_times in strata.items():
        slower = geometric_mean(all_times) - 1
        if slower > threshold:
            over = f"over {len(all_times)} problems, {max(all_times):.2f} times the time at most"
            name = f"{op}, {stratum}, {provider}"
            lines.append(f"{name}: {100 * slower:.0f} % slower than the baseline {over}")
    return lines


def _medians(case: dict[str, Any]) -> dict[str, float]:
    return {e["provider"]: e["median"] for e in case["entries"] if not e["problem"]}
