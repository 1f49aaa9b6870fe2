"""The CUDA side of debug: one case under every tool that this machine has."""
