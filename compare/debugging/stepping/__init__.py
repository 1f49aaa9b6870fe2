"""pdb in one program."""
