"""The steps that playbooks compose: thin Prefect tasks over one piece of library code each."""
