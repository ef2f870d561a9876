"""What stands between a socket and the applications: limits that uvicorn does not have."""
