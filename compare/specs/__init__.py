"""The classes of specs: one for any op, one a family, and one for functions from elsewhere."""

from compare.specs.elementwise import Elementwise
from compare.specs.functions import Function
from compare.specs.products import Product
from compare.specs.spec import Spec
from compare.specs.sums import Sum

__all__ = ["Elementwise", "Function", "Product", "Spec", "Sum"]
