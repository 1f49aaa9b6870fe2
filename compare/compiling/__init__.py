"""Every kernel as machine code, without a GPU: what `python -m compare compile` shows."""
