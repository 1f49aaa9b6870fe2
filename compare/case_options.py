"""The options of a case: allowed values, and how the command line reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from compare.cases import DISTANT, DTYPES, FLOATS, LAYOUTS, OF_MODELS


class Option(NamedTuple):
    """One option. ``read`` parses the text that ``str`` makes of a value, and raises ValueError for
    any other; ``allowed`` describes the values."""

    allowed: str
    read: Callable[[str], Any]


def choice(*names: str) -> Option:
    """One of these words."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return Option(f"one of {', '.join(names)}", read)


def _number(text: str) -> int | float:
    try:
        whole = int(text)
    except ValueError:
        return float(text)
    if not -(2**1023) < whole < 2**1023:
        raise ValueError(text)  # too large for a float, so no factor
    return whole


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _index(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _truth(text: str) -> bool:
    try:
        return {"True": True, "true": True, "False": False, "false": False}[text]
    except KeyError:
        raise ValueError(text) from None


NUMBER = Option("a number", _number)
COUNT = Option("a positive whole number", _count)
INDEX = Option("a whole number from 0", _index)
TRUTH = Option("True or False", _truth)  # bool("no") would be True
ANY_DTYPE = choice(*DTYPES)
FLOAT_DTYPE = choice(*FLOATS)
LYING = choice(*LAYOUTS, *OF_MODELS, *DISTANT)  # the layout of one tensor
