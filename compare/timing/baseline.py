"""A bench --json file as the baseline for later runs."""

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
    """A file that cannot be a run's baseline."""


def read(file: Path, mode: Mode) -> list[dict[str, Any]]:
    """The cases of a file.

    Raises:
        BaselineError: it is no such file, or was measured in another mode.
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
    """The mode in which a file's times were taken."""
    return Mode(saved.get("cold", True), saved.get("graph", False))


def in_words(mode: Mode) -> str:
    """The mode in words."""
    cache = "with a cold cache" if mode.cold else "with a warm cache (--warm)"
    return cache + (" of CUDA graphs (--graph)" if mode.graph else "")


@dataclass(frozen=True)
class Change:
    """The time of one of our providers relative to the baseline, for a case or a stratum.

    Attributes:
        then, now: microseconds of a case; None for a stratum.
        times: now over then; above 1 is slower.
        problems: these ratios for a stratum's problems; ``times`` is their geometric mean.
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
    """The changes of our providers in all common cases, or for a sample in all common strata.

    Times are taken relative to the peer that was fastest in the baseline, if it was timed both
    times, which cancels the state of the machine; otherwise medians are compared. A stratum's value
    is the geometric mean over the common problems: one problem has too few samples in a sample to
    be more precise than the threshold.
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
    """The providers of ours that are slower than in the baseline by more than the threshold."""
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
