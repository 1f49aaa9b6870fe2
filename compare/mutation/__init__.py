"""mutate: plants faults in the kernels, one at a time, to see which of them the check finds."""
