"""Attention over a paged KV cache: the backend protocol and its implementations."""
