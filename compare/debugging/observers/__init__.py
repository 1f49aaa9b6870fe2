"""What watches an interpreted run."""
