"""What is wrong with a value, in the words of this command line.

Options and settings are both checked by pydantic, which says of `--port http` that "input should be
a valid integer, unable to parse string as an integer".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperGroup

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# By the kind of an error; what stands in braces is of its `ctx`.
_WORDS: Final[Mapping[str, str]] = {
    "int_parsing": "it must be a whole number",
    "int_parsing_size": "it must be a whole number of fewer digits",
    "int_from_float": "it must be a whole number",
    "int_type": "it must be a whole number",
    "float_parsing": "it must be a number",
    "float_type": "it must be a number",
    "decimal_parsing": "it must be a number",
    "finite_number": "it must be a finite number",
    "bool_parsing": "it must be true or false",
    "bool_type": "it must be true or false",
    "string_type": "it must be a text",
    "list_type": "it must be a list",
    "tuple_type": "it must be a list",
    "dict_type": "it must be a table",
    "model_type": "it must be a table",
    "greater_than_equal": "it must be at least {ge}",
    "greater_than": "it must be above {gt}",
    "less_than_equal": "it must be at most {le}",
    "less_than": "it must be below {lt}",
    "literal_error": "it must be {expected}",
    "enum": "it must be {expected}",
    "ip_v4_network": "it must be a network, as 10.0.0.0/8",
    "ip_v6_network": "it must be a network, as 10.0.0.0/8",
}


def said_of(error: ErrorDetails) -> str:
    """Say what is wrong; what is of our own making is said as it was written."""
    words = _WORDS.get(error["type"])
    if words is None:
        return error["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    return words.format_map(error.get("ctx", {}))


class PlainGroup(TyperGroup):
    """Hold commands whose options are refused in our words."""

    def invoke(self, ctx: Any) -> Any:  # typer's own class, which is not public
        try:
            return super().invoke(ctx)
        except Exception as exc:
            errors = getattr(exc.__cause__, "errors", None)
            # Only an option that did not fit has a parameter, and what pydantic found as its cause.
            if getattr(exc, "param", None) is not None and errors is not None:
                exc.message = said_of(errors()[0])  # type: ignore[attr-defined]  # as above
            raise
