"""The classes of specs: one for any op, and one a family."""

from compare.specs.elementwise import Elementwise
from compare.specs.products import Product
from compare.specs.spec import Spec

__all__ = ["Elementwise", "Product", "Spec"]
