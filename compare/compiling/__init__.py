"""The machine code of every kernel, compiled without a GPU: `python -m compare compile`."""
