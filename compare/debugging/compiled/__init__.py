"""The compiled kernel beside the interpreted one."""
