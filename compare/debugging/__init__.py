"""From a wrong result to the program and line that made it; public as compare.debug."""
