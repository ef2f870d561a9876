"""What the kernels compute, in plain torch and float32: their tests' truth, and the CPU's path."""
