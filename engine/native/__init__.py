"""What is compiled: a CPU's operators and a scheduler's loops over rows, used where they are built.

`python -m engine.native build` compiles `csrc/` and `rows/` in about 15 seconds into the user's
cache; an engine with `EngineConfig.native` "auto" then uses the one, and schedulers the other.
Without a compiler, or unbuilt, everything runs in torch and in Python, slower by the ratios in
`docs/benchmarks`. Importing this package loads no torch.
"""
