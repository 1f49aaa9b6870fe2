"""Matrix products on compute capability 9.0, by a kernel in Gluon."""
