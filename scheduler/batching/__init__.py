"""How batches were run before continuous batching, on the same contract, to compare with.

A batch is formed once, its prompts are computed, its rows decode together, and nothing joins until
the last of them has ended. `batch_scheduler` runs a batch; who is in it is decided by one of the
formers `static`, `dynamic` and `sorted_window`; `baselines` gives them their names. They know
arrival order and lengths alone: no tenants, bands or deadlines, no prefix cache, no preemption.
"""
