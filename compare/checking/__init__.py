"""Runs, the judge, verdicts."""
