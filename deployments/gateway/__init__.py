"""The alert gateway: takes heartbeats, events and alerts, opens incidents, starts playbooks and watches them."""
