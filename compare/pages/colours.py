"""The colour and marker of each provider in all figures. The colours are Okabe and Ito's, which
colour-blind readers can tell apart.

Figures are drawn in placeholder colours. These are replaced by CSS variables, whose values for
light and dark pages are in the style sheet.
"""

from __future__ import annotations

from typing import NamedTuple

# Variable → (light, dark).
VARIABLES = {
    "paper": ("#ffffff", "#14171a"),
    "ink": ("#1c2024", "#e8eaed"),
    "muted": ("#5c656e", "#a3acb5"),
    "grid": ("#d9dee3", "#343b42"),
    "triton": ("#0072b2", "#3ea0de"),
    "triton-variant": ("#56b4e9", "#9ad4f5"),
    "cuda": ("#e69f00", "#e69f00"),
    "cuda-variant": ("#d55e00", "#f0813a"),
    "eager": ("#3a4047", "#d5dade"),
    "compile": ("#009e73", "#1fc296"),
    "cublaslt": ("#cc79a7", "#e08fbc"),
    "others": ("#8f8300", "#f0e442"),
    "good": ("#00694d", "#35c79c"),
    "bad": ("#b34700", "#ff8a4a"),
}
# Placeholder → variable. matplotlib draws in these colours; nothing else uses them.
PLACEHOLDERS = {f"#0a0b{i:02x}": name for i, name in enumerate(VARIABLES)}
_OF = {name: colour for colour, name in PLACEHOLDERS.items()}


# Peer → (variable, marker). All other packages share the variable "others".
_PEERS = {
    "eager": ("eager", "x"),
    "compile": ("compile", "^"),
    "max-autotune": ("compile", "v"),
    "cublaslt": ("cublaslt", "*"),
    "quack": ("others", ">"),
}


class Style(NamedTuple):
    """The colour, marker and line style of a provider."""

    colour: str
    marker: str
    line: str = "-"


def ink(name: str) -> str:
    """A variable's placeholder, for matplotlib."""
    return _OF[name]


def of_provider(provider: str) -> Style:
    """The style of a provider of bench or an implementation of check. One kernel has one colour."""
    side, _, variant = provider.partition("/")
    line = "--" if side in ("triton-interpreted", "cuda-host") else "-"  # not on the GPU
    side = side.split("-")[0] if side.startswith(("triton-", "cuda-")) else side
    if side in ("triton", "cuda"):
        markers = {"triton": ("o", "h"), "cuda": ("s", "P")}[side]
        own = {"tiled": "D", "wmma": "p", "cublaslt": "X"}.get(variant, markers[bool(variant)])
        line = {"": line, "wmma": "-."}.get(variant, ":")
        return Style(ink(side + ("-variant" if variant else "")), own, line)
    colour, marker = _PEERS.get(side, ("others", "<"))
    return Style(ink(colour), marker)


def style_sheet() -> str:
    """The variables as CSS, with their values for light and for dark pages."""
    light, dark = (
        "".join(f"--{name}:{values[i]};" for name, values in VARIABLES.items()) for i in (0, 1)
    )
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )
