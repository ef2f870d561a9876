"""Decides which requests an engine computes next, step by step.

`core.Scheduler` is pure: no thread, no clock, no I/O; `service.EngineService` drives it and an
engine from one thread. This package knows requests, tenants as (id, weight) and KV blocks as
integers; no HTTP, no SQL, no tensors.
"""
