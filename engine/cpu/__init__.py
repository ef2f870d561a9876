"""The engine on a CPU, in torch or in the compiled operators of `engine.native`.

Its attention is the oracle that every other backend is tested against.
"""
