"""Schemas with what the library does not know of JSON Schema, in words that it knows.

It refuses a keyword that it cannot hold answers to, by name. Most can be said with others: `not` by
what is left of each type, `if` by two alternatives, `dependentRequired` by a member that is absent
or has its company. Where that is all that the schema takes, the rewriting is exact. Where it is
not, it takes less and never more: of `contains` an item at one of the first places, of `oneOf` what
the other branches are known not to take. So whatever is written is of the schema as it was sent.
What cannot be said stays as it was, and is refused by name as before.

`scope` bounds the work; `narrowed` walks; `members`, `items`, `numbers`, `choices` and `formats`
each know some keywords; `outside` says what a schema does not take, and `values` what is left
beside some values.
"""

from gateway.services.constraints.narrowing.narrowed import Narrowed, narrowed
from gateway.services.constraints.narrowing.scope import CannotBeHeld

__all__ = ["CannotBeHeld", "Narrowed", "narrowed"]
