"""Triton kernels, one idea a file, each with a twin in plain torch (`engine.kernels.twins`).

`operations` says what they are to compute, `choose` which of both does so on a device; nothing here
knows a scheduler or a plan.
"""
