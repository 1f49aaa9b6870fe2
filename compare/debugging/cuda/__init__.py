"""The CUDA side of debug: one case under every available tool."""
