"""Anthropic's endpoints: messages, their tokens, and batches of them."""
