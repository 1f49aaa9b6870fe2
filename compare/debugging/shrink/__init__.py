"""The smallest case that still fails, and a file that reproduces it."""
