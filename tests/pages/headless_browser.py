"""Headless Chromium: a page in a frame as wide as a phone, and what its probe tells the frame."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), "")
needs_browser = pytest.mark.skipif(not BROWSER, reason=f"none of {', '.join(BROWSERS)} on the PATH")
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=4000",
]
# A window is never as narrow as a phone; a frame is.
FRAME = """<!doctype html><title>nothing</title><style>body{{margin:0}}</style>
<script>addEventListener("message", told => document.title = told.data)</script>
<iframe src="{page}" style="width:{width}px;height:1600px;border:0"></iframe>"""


class Seen(NamedTuple):
    """What the probe found, what the browser logged of scripts and loading, and a picture."""

    found: dict[str, Any]
    logged: list[str]
    picture: Path


def in_its_scheme(seen: Seen, width: int, dark: bool) -> None:
    """Colours and the picture are of the scheme that was asked for, and something is drawn."""
    assert (_lightness(seen.found["paper"]) < 60) == dark
    assert (_lightness(seen.found["ink"]) > 200) == dark
    image = pytest.importorskip("matplotlib.image").imread(seen.picture)[:, :width]
    grey = 255 * image[..., :3].mean(axis=2)
    paper = grey < 60 if dark else grey > 230
    assert 0.5 < paper.mean() < 0.97, "blank, or of the other scheme"


def _lightness(colour: str) -> float:
    return sum(int(word) for word in re.findall(r"\d+", colour)[:3]) / 3


def browse(page: Path, folder: Path, width: int, dark: bool) -> Seen:
    frame, picture = folder / "frame.html", folder / "page.png"
    frame.write_text(FRAME.format(page=page.as_uri(), width=width))
    own = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    own += [f"--user-data-dir={folder / 'profile'}", f"--window-size={max(width, 800)},1600"]
    command = [BROWSER, *OPTIONS, *own, f"--screenshot={picture}", "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title is not None, "the page did not load"
    logged = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(json.loads(html.unescape(title[1])), logged, picture)
