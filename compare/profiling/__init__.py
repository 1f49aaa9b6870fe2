"""Profiles of implementations, for ``python -m compare profile``."""
