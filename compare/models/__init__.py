"""How much of a model the backend "triton_kernels" fuses: `python -m compare models`."""
