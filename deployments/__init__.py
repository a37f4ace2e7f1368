"""How it runs: gateway, playbook worker, and what each kind of site applies."""
