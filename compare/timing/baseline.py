"""A file of bench --json as what later runs must not be slower than."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
        then = mode_of(saved)
    except KeyError as error:
        raise BaselineError(f"no file of bench --json: it has no {error}") from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise BaselineError(f"no file of bench --json ({error})") from None
    if then != mode:
        raise BaselineError(
            f"it holds times {in_words(then)}, this run takes them {in_words(mode)}"
        )
    return cases


def mode_of(saved: dict[str, Any]) -> Mode:
    """How a file's times were taken."""
    return Mode(saved.get("cold", True), saved.get("graph", False))


def in_words(mode: Mode) -> str:
    """The mode in words: with a cold or a warm cache, of CUDA graphs or not."""
    cache = "with a cold cache" if mode.cold else "with a warm cache (--warm)"
    return cache + (" of CUDA graphs (--graph)" if mode.graph else "")


@dataclass(frozen=True)
class Change:
    """What one of ours takes now, in multiples of what it took then: of a case, or of a stratum.

    Attributes:
        then, now: microseconds of a case; None of a stratum.
        times: above 1 is slower.
        problems: the multiples of a stratum's problems, which ``times`` is the geometric mean of.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    provider: str
    times: float
    then: float | None = None
    now: float | None = None
    stratum: str = ""
    problems: tuple[float, ...] = ()


def changes(results: list[dict[str, Any]], baseline: list[dict[str, Any]]) -> list[Change]:
    """Every case that both have, for each of ours; of a sample, every stratum.

    Times are compared as multiples of the peer that was best then, if it was timed both times:
    that cancels the machine's state. Else the medians are compared. Of a sample every stratum is
    compared as one, by the geometric mean over the problems that both have: of a single problem
    the short look of a sample tells less than the threshold.
    """
    changed = []
    strata: dict[tuple[str, str, str], list[float]] = {}
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
            if case.get("stratum"):
                strata.setdefault((case["op"], case["stratum"], provider), []).append(times)
            else:
                place = case["op"], case["dtype"], tuple(case["shape"])
                changed.append(Change(*place, provider, times, then[provider], now[provider]))
    for (op, stratum, provider), all_times in strata.items():
        mean = geometric_mean(all_times)
        changed.append(
            Change(op, "", (), provider, mean, stratum=stratum, problems=tuple(all_times))
        )
    return changed


def regressions(
    results: list[dict[str, Any]], baseline: list[dict[str, Any]], threshold: float
) -> list[str]:
    """Where one of ours takes longer than in the baseline, by more than the threshold."""
    lines = []
    for each in changes(results, baseline):
        slower = each.times - 1
        if slower <= threshold:
            continue
        name, over = f"{each.op} {each.dtype} {'×'.join(map(str, each.shape))}", ""
        if each.stratum:
            name = f"{each.op}, {each.stratum}"
            most = f"{max(each.problems):.2f} times the time at most"
            over = f" over {len(each.problems)} problems, {most}"
        lines.append(
            f"{name}, {each.provider}: {100 * slower:.0f} % slower than the baseline{over}"
        )
    return lines


def _medians(case: dict[str, Any]) -> dict[str, float]:
    return {e["provider"]: e["median"] for e in case["entries"] if not e["problem"]}
