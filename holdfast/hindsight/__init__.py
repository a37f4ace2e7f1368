"""What a policy would have decided about an incident of the past: its playbook runs again over the record alone.

The ledger is copied as it stood when the incident was opened (:mod:`holdfast.hindsight.record`). The gateway's
classification and the very playbook run over the copy: policies decide, and what machines answered comes from the
record (:mod:`holdfast.hindsight.stand_ins`). What the record lacks is said to be not recorded.
"""
