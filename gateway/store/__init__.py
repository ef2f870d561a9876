"""Everything that is stored: PostgreSQL, Redis, and the embedded servers of both.

The only home of SQLAlchemy and Redis. `open_store` is the entrance; what it hands out
implements `gateway.ports`.
"""

from gateway.domain import FirstStart
from gateway.store.open import Store, open_store

__all__ = ["FirstStart", "Store", "open_store"]
