"""Replay of a past incident under a policy: its playbook runs again over the record alone.

The ledger is copied as it stood when the incident was opened (:mod:`holdfast.hindsight.incident_record`). The gateway's
classification and the same playbook run over the copy: policies decide, and the machines' answers come from the
record (:mod:`holdfast.hindsight.stand_ins`). Anything missing from the record is reported as not recorded.
"""
