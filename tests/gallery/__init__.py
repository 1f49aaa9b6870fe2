"""Kernels of the kinds that people write, healthy and with one fault each.

``GALLERY`` holds them by name; tests/debug/test_gallery.py runs them, and ``python tests/gallery``
lists the faults with where the reports name the changed line. exhibits.py says how a fault is
written down.
"""

from __future__ import annotations

import importlib
import pkgutil

from gallery.exhibits import Exhibit

FAMILIES = sorted(
    info.name
    for info in pkgutil.iter_modules(__path__)
    if info.name not in ("__main__", "exhibits")
)
GALLERY: dict[str, Exhibit] = {
    each.name: each
    for family in FAMILIES
    for each in vars(importlib.import_module(f"gallery.{family}")).values()
    if isinstance(each, Exhibit)
}
