"""The ops of the CUDA side; import their functions from :mod:`cuda_reference`."""
