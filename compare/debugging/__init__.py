"""From a wrong result to the program and line that made it; the public face is compare.debug."""
