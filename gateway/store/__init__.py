"""Everything that is stored: PostgreSQL, Redis, and the embedded servers of both.

The only home of SQLAlchemy and Redis. `open_store` is the entrance; what it hands out
implements `gateway.ports`. It is one large room, as most of it is a file a table on one database.
"""

from gateway.domain import FirstStart
from gateway.store.open import Store, open_store

__all__ = ["FirstStart", "Store", "open_store"]
