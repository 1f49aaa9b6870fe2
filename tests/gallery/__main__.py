"""``python tests/gallery [WORD]``: where the reports name the line that each fault changes.

A WORD picks those in whose name it stands. The other dtypes say the same, so it tries one.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from gallery import GALLERY
from gallery.naming import HEADLINE, NOWHERE, SHOWN, where_named


def main(word: str) -> None:
    counts: Counter[str] = Counter()
    for exhibit in GALLERY.values():
        for fault in exhibit.faults.values():
            name = f"{exhibit.name}: {fault.name}"
            if not fault.in_kernel or word not in name:
                continue
            found = exhibit.broken(fault, exhibit.dtypes[0]).debug()
            where = where_named(found, fault, exhibit.file.name)
            counts[where] += 1
            print(f"{where:9} {name} ({exhibit.file.name}:{fault.line})", flush=True)
    print(", ".join(f"{counts[where]} {where}" for where in (HEADLINE, SHOWN, NOWHERE)))


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
