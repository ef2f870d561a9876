"""The composition root: everything is opened, put together and served from here."""
