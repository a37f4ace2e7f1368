"""Hosts in network namespaces, and cuts of the network between them."""
