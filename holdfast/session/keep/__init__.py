"""Processes that outlive their epoch: the training function ends, and is called again in the next one."""
