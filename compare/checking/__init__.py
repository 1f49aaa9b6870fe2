"""Running cases, judging results, verdicts."""
