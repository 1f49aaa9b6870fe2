"""Findings of debug, and their text."""
