"""OpenAI's Responses: one more rendering of what chats compute, and what is stored of it."""
