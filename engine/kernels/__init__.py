"""Triton kernels, one idea a file, each with a twin in plain torch (`engine.kernels.twins`).

`operations` says what they are to compute; nothing here knows a scheduler or a plan.
"""
