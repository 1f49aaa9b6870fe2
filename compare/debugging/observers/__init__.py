"""Observers of an interpreted run."""
