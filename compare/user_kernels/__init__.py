"""compare's checks, benchmarks and profiles for kernels and models from elsewhere."""
