"""What a message asks of the form of its answer, and of the effort that is put into it."""

from __future__ import annotations

from typing import Any

from gateway.api.anthropic.schemas import MessagesFields
from gateway.api.openai.bounds import MAX_EFFORT_CHARS
from gateway.api.openai.parameters import unsupported
from gateway.errors import InvalidRequest
from gateway.services.constraints import ConstraintSpec, json_spec


def requested_effort(body: MessagesFields) -> str | None:
    """Return `output_config.effort`. Raises: `InvalidRequest`, `UnsupportedParameter`."""
    config = body.output_config or {}
    for name, value in config.items():
        if value is not None and name not in ("effort", "format"):
            raise unsupported(f"output_config.{name[:64]}")
    effort = config.get("effort")
    if effort is not None and (not isinstance(effort, str) or len(effort) > MAX_EFFORT_CHARS):
        raise InvalidRequest(
            f"'output_config.effort' is a text of up to {MAX_EFFORT_CHARS} characters.",
            param="output_config.effort",
        )
    return effort


def requested_form(body: MessagesFields) -> ConstraintSpec | None:
    """Return what form the answer is to have; None: any. Raises: `InvalidRequest`."""
    asked = {
        "output_config.format": (body.output_config or {}).get("format"),
        "output_format": body.output_format,
    }
    forms = [(param, form) for param, form in asked.items() if form is not None]
    if not forms:
        return None
    if len(forms) > 1:
        raise InvalidRequest(
            "'output_config.format' and 'output_format' are the same; leave one out.",
            param="output_format",
        )
    [(param, form)] = forms
    return json_spec(_schema(form, param), param=f"{param}.schema")


def _schema(form: Any, param: str) -> dict[str, Any]:
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise InvalidRequest(f"'{param}.type' is 'json_schema'.", param=f"{param}.type")
    schema = form.get("schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"'{param}' needs a 'schema'.", param=f"{param}.schema")
    for name in sorted(form.keys() - {"type", "schema"}):
        if form[name] is not None:
            raise InvalidRequest(
                f"Unknown field in '{param}': {name[:64]}.",
                param=f"{param}.{name[:64]}",
                code="unknown_parameter",
            )
    return schema
