"""Orders to serve requests in; one policy a file."""
