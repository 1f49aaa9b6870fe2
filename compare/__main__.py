"""``python -m compare``."""

from compare.cli import app

app(prog_name="python -m compare")
