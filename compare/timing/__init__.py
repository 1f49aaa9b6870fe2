"""How long implementations take: what bench and `pytest --benchmark` measure with."""
