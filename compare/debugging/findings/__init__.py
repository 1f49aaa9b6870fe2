"""What debug found, and how it reads."""
