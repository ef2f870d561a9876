"""KV accounting as integers: which block holds which tokens, and who uses it.

It knows token ids, blocks and opaque bytes; no tensors, no tenants, no queues. One thread at a
time may use a pool and its tables.
"""
