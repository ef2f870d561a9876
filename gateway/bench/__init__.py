"""What a request and a streamed event cost the gateway's process."""
