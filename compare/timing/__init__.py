"""Timing of implementations, for bench and `pytest --benchmark`."""
