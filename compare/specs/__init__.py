"""The classes of specs: a base class, the families of ops, and functions from elsewhere."""

from compare.specs.elementwise import Elementwise
from compare.specs.functions import Function
from compare.specs.products import Product
from compare.specs.spec import Spec
from compare.specs.sums import Sum

__all__ = ["Elementwise", "Function", "Product", "Spec", "Sum"]
