"""``python tests/gallery [WORD] [--html FILE]``: where the reports name the line that each fault
changes, and a page that draws the last one.

A WORD picks those in whose name it stands. The other dtypes say the same, so it tries one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from gallery import GALLERY
from gallery.naming import HEADLINE, NOWHERE, SHOWN, where_named


def main(word: str, html: Path | None) -> None:
    counts: Counter[str] = Counter()
    for exhibit in GALLERY.values():
        for fault in exhibit.faults.values():
            name = f"{exhibit.name}: {fault.name}"
            if not fault.in_kernel or word not in name:
                continue
            found = exhibit.broken(fault, exhibit.dtypes[0]).debug()
            where = where_named(found, fault, exhibit.file.name)
            counts[where] += 1
            if html:
                html.write_text(found.to_html(), encoding="utf-8")
            print(f"{where:9} {name} ({exhibit.file.name}:{fault.line})", flush=True)
    print(", ".join(f"{counts[where]} {where}" for where in (HEADLINE, SHOWN, NOWHERE)))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Where the reports name the gallery's faults.")
    options.add_argument("word", nargs="*", metavar="WORD")
    options.add_argument("--html", type=Path, metavar="FILE")
    given = options.parse_args()
    main(" ".join(given.word), given.html)
