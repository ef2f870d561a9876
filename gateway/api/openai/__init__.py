"""The inference endpoints in OpenAI's shapes."""
