"""Comparison of the compiled with the interpreted kernel."""
