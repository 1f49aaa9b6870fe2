"""What becomes of models under the backend "triton_kernels": `python -m compare models`."""
