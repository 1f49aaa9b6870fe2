"""The ops, one file each; import their functions from :mod:`triton_kernels`."""
