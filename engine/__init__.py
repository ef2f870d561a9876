"""Computes what it is told to: plans in, sampled tokens out.

`contract` says what a plan and an engine are, and `open` which engine serves a configuration:
`cpu`, `gpu`, or `simulated`. Both of the first stand on `models`, `sampling` and what `probe` found
out about the machine; `text` and `kv` are for those who make the plans. It knows no tenants, queues
or policies.
"""
