"""The matrix product of 16-bit matrices on compute capability 9.0, in Gluon."""
