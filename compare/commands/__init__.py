"""The commands of `python -m compare`, one file each."""
