"""cross_check and check_fused: the same scrutiny for kernels and models from elsewhere."""
