"""The compiled CPU path: operators in C++, built once, used where they are there.

`python -m engine.native build` compiles `csrc/` in about 15 seconds into the user's cache; an
engine with `EngineConfig.native` "auto" then uses it. Without a compiler, or unbuilt, everything
runs in torch, slower by the ratios in `docs/benchmarks`. Importing this package loads no torch.
"""
