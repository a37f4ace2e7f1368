"""Hosts in network namespaces, and what happens when the network between them is cut."""
