"""What this machine has and what is wrong with it: `python -m compare doctor`."""
