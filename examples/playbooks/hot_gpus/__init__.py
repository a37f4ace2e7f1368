"""A playbook for GPUs that throttle for heat, as a package of its own."""
