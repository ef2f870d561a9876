"""What a request asks of the form of its answer: a JSON schema, a pattern, choices, a grammar.

`ConstraintSpec` says it as text, `Constraints` compiles it for a model, and the engine's sampler
asks the result which tokens may come next. Compiling is checked first in a process that may be
killed. The library is llguidance: lazy, bounded by counters of its own work, and loud about what
it does not know; `docs/decisions.md` has the comparison.
"""

from gateway.services.constraints.checkers import Checkers
from gateway.services.constraints.limits import (
    MAX_CHOICE_CHARS,
    MAX_CHOICES,
    MAX_REGEX_CHARS,
)
from gateway.services.constraints.service import Constraints, Vocabulary
from gateway.services.constraints.spec import (
    ConstraintSpec,
    choice_spec,
    client_grammar_spec,
    json_rule,
    json_spec,
    lark_spec,
    regex_spec,
)

__all__ = [
    "MAX_CHOICES",
    "MAX_CHOICE_CHARS",
    "MAX_REGEX_CHARS",
    "Checkers",
    "ConstraintSpec",
    "Constraints",
    "Vocabulary",
    "choice_spec",
    "client_grammar_spec",
    "json_rule",
    "json_spec",
    "lark_spec",
    "regex_spec",
]
