"""Acts on jobs and machines, with their context passed in: playbooks and the gateway use the same. Without Prefect."""
