"""Jinja2's immutable sandbox, with a budget on all that a template can repeat or blow up.

Jinja2 lets an environment intercept calls, filters and arithmetic. Loops, `~`, literals and
comparisons it compiles to plain Python, so these are rewritten in the parsed template to filters
whose names no template can write. The budget travels in the context, under such a name too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

from engine.text.template_budget import ESTIMATED, Budget, estimate_binop, estimate_call, size_of

# None of these is an identifier.
BUDGET = "the budget"
_METER, _CONCAT, _WEIGH = "a metered loop", "a concatenation", "a weight"

# What is added or written once, and is no longer than this, is bounded by steps alone.
_SHORT = 1024

_WRITING = frozenset(["tojson", "string", "pprint", "join", "%", "format", "urlencode", "xmlattr"])
_COMPARING = frozenset(["sort", "unique", "min", "max", "groupby", "dictsort", "sum"])
_COMPARING_TESTS = (
    *("==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le"),
    *(">", "gt", "greaterthan", ">=", "ge", "in"),
)


class MeteredSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Run templates whose context holds a `Budget` under `BUDGET`."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    # Any: Jinja2's options, and values of any type.
    def __init__(self, filters: dict[str, Callable[..., Any]], **options: Any) -> None:
        super().__init__(finalize=_write_out, **options)
        self.filters |= filters
        for name in _COMPARING_TESTS:
            self.tests[name] = _compared(self.tests[name])
        # Random words, as many as are asked for.
        del self.globals["lipsum"]
        self._plain = jinja2.sandbox.ImmutableSandboxedEnvironment()
        self._plain.filters = dict(self.filters)
        self.filters = {name: self._metered(name) for name in self.filters}
        self.filters |= {_METER: _meter, _CONCAT: _concatenate, _WEIGH: _weigh}

    def _metered(self, name: str) -> Callable[..., Any]:
        """Wrap a filter so that it draws on the budget."""

        @jinja2.pass_context
        def run(context: jinja2.runtime.Context, value: Any, *args: Any, **kwargs: Any) -> Any:
            budget = _budget_of(context)
            if name in _COMPARING:
                budget.weigh(value)
            if name == "join" and not hasattr(value, "__len__"):
                value = list(budget.meter(value))
            if name == "sum" and any(isinstance(each, list) for each in (*args, *kwargs.values())):
                raise OverflowError("a sum of lists")
            # The filter formats by `%`, the method of that name by braces.
            kind = "%" if name == "format" else name
            _foresee(budget, kind, value, (*args, *kwargs.values()))
            result = self._plain.call_filter(name, value, args, kwargs, context=context)
            return _taken(budget, result)

        return run

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template: jinja2.nodes.Template = _Rewriter().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template

    def call(
        __self,
        __context: jinja2.runtime.Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call what a template calls."""
        budget = _budget_of(__context)
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _foresee(budget, method.__name__, owner, (*args, *kwargs.values()))
        elif isinstance(owner, list | tuple) or method in (dict, jinja2.utils.Namespace):
            budget.weigh((*args, *kwargs.values()))
        return _taken(budget, super().call(__context, __obj, *args, **kwargs))

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Compute what an operator says."""
        if operator == "+":
            result = left + right
            if isinstance(result, str | list | tuple) and len(result) > _SHORT:
                _budget_of(context).make(size_of(result))
            return result
        budget = _budget_of(context)
        budget.make(estimate_binop(operator, left, right))
        if operator == "%" and not isinstance(left, int | float):
            budget.write_out(right)
        return _taken(budget, super().call_binop(context, operator, left, right))


class _Rewriter(jinja2.visitor.NodeTransformer):
    """Put filters of the sandbox's own where templates compile to plain Python."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(_METER, node.iter)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _filtered(_CONCAT, *node.nodes)

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:
        self.generic_visit(node)
        # What a constant is compared with ends soon.
        if _is_constant(node.expr) or all(_is_constant(operand.expr) for operand in node.ops):
            return node
        node.expr = _filtered(_WEIGH, node.expr)
        for operand in node.ops:
            # What something is looked for in is compared part by part with what is looked for.
            if operand.op not in ("in", "notin"):
                operand.expr = _filtered(_WEIGH, operand.expr)
        return node

    def visit_List(self, node: jinja2.nodes.List) -> jinja2.nodes.Node:
        return self._weigh_literal(node)

    def visit_Dict(self, node: jinja2.nodes.Dict) -> jinja2.nodes.Node:
        return self._weigh_literal(node)

    def visit_Tuple(self, node: jinja2.nodes.Tuple) -> jinja2.nodes.Node:
        return node if node.ctx == "store" else self._weigh_literal(node)

    def _weigh_literal(self, node: jinja2.nodes.Expr) -> jinja2.nodes.Node:
        if _is_constant(node):
            return node
        self.generic_visit(node)
        return _filtered(_WEIGH, node)


def _is_constant(node: jinja2.nodes.Expr) -> bool:
    try:
        node.as_const()
    except jinja2.nodes.Impossible:
        return False
    return True


def _filtered(
    name: str, first: jinja2.nodes.Node, *others: jinja2.nodes.Expr
) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(first, name, list(others), [], None, None)


def _budget_of(context: jinja2.runtime.Context) -> Budget:
    # Past the names that a template may set.
    budget: Budget = context.parent[BUDGET]
    return budget


@jinja2.pass_context
def _meter(context: jinja2.runtime.Context, items: Iterable[object]) -> Iterator[object]:
    """Hand on what a loop goes through."""
    return _budget_of(context).meter(items)


@jinja2.pass_context
def _concatenate(context: jinja2.runtime.Context, *values: object) -> str:
    """Do what `~` does."""
    budget = _budget_of(context)
    for value in values:
        budget.write_out(value)
    return "".join(map(str, values))


@jinja2.pass_context
def _weigh(context: jinja2.runtime.Context, value: object) -> object:
    """Take a list, a tuple or a dictionary that was written down, or what is compared."""
    _budget_of(context).weigh(value)
    return value


# Any: what templates compute with.
def _foresee(budget: Budget, name: str, value: Any, arguments: Sequence[Any]) -> None:
    """Take what a filter, or a method of a text, is going to make."""
    if name in _WRITING:
        budget.write_out(arguments)
        if not isinstance(value, str):
            budget.write_out(value)
    if name in ESTIMATED:
        budget.make(estimate_call(name, value, arguments))


def _taken(budget: Budget, result: Any) -> Any:
    """Take what was made, and a step."""
    budget.step()
    if isinstance(result, str | list | tuple | dict) and len(result) > _SHORT:
        budget.make(size_of(result))
    return result


# Any: a test is a function, which mypy tells from a callable here.
def _compared(test: Any) -> Callable[..., Any]:
    @jinja2.pass_context
    def run(context: jinja2.runtime.Context, value: Any, *args: Any) -> Any:
        budget = _budget_of(context)
        budget.weigh((value, *args))
        return test(value, *args)

    return run


@jinja2.pass_context
def _write_out(context: jinja2.runtime.Context, value: object) -> object:
    """Take what is written, into the prompt or into a variable."""
    if not isinstance(value, str) or len(value) > _SHORT:
        _budget_of(context).write_out(value)
    return value
