"""The routes of the admin API, `/admin/v1`."""
