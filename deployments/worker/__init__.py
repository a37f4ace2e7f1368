"""The playbook worker: a Prefect worker that hands each flow run to a warm, pre-imported process."""
