"""The kernels under the matrix products: what they compute, how they are cut, how they start."""
