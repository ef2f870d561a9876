"""The web UI of those who run Sluice: pages over the services that the admin API calls.

It knows no SQL and no Redis. Pages are rendered on the server and complete without a script.
"""
