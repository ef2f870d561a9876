"""The engine on a GPU: static buffers, captured steps, two of them in flight.

Where there is no GPU the same logic runs on a CPU, on the kernels' torch twins, for the tests.
"""
