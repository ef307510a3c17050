"""Sizes and conditions as JSON (the expressions of README.md), converted from torch's sympy expressions."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import sympy
from torch.utils._sympy import functions

Expression = int | float | bool | str | list

_OPERATORS: dict[type, str] = {
    sympy.Add: "add", sympy.Mul: "mul", sympy.Pow: "pow", sympy.Min: "min", sympy.Max: "max",
    sympy.Eq: "eq", sympy.Ne: "ne", sympy.Lt: "lt", sympy.Le: "le", sympy.Gt: "gt", sympy.Ge: "ge",
    sympy.And: "and", sympy.Or: "or", sympy.Not: "not", sympy.Mod: "mod",
    functions.FloorDiv: "floordiv", functions.CleanDiv: "floordiv", functions.Mod: "mod", functions.PythonMod: "mod",
    functions.IntTrueDiv: "truediv", functions.FloatTrueDiv: "truediv", functions.PowByNatural: "pow",
    functions.FloatPow: "pow", functions.Min: "min", functions.Max: "max",
}  # fmt: skip

_PYTHON: dict[str, Callable[..., str]] = {
    "add": lambda *a: "(" + "+".join(a) + ")", "mul": lambda *a: "(" + "*".join(a) + ")", "pow": "({}**{})".format,
    "min": lambda *a: f"min({','.join(a)})", "max": lambda *a: f"max({','.join(a)})",
    "floordiv": "({}//{})".format, "mod": "({}%{})".format, "truediv": "({}/{})".format,
    "eq": "({}=={})".format, "ne": "({}!={})".format, "lt": "({}<{})".format, "le": "({}<={})".format,
    "gt": "({}>{})".format, "ge": "({}>={})".format, "not": "(not {})".format,
    "and": lambda *a: "(" + " and ".join(a) + ")", "or": lambda *a: "(" + " or ".join(a) + ")",
    "select": lambda c, a, b: f"({a} if {c} else {b})",
}  # fmt: skip


def to_json(expression: Any) -> Expression:
    """The expression of README.md for a sympy expression, a SymInt or a plain number."""
    expression = getattr(getattr(expression, "node", None), "expr", expression)
    if isinstance(expression, (bool, int, float)):
        return expression
    if expression in (sympy.true, sympy.false):
        return bool(expression)
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return str(expression)
    if expression.is_Number:
        number = float(expression)
        return int(number) if number.is_integer() else number
    if isinstance(expression, (functions.ToFloat, functions.Identity)):
        return to_json(expression.args[0])
    if isinstance(expression, sympy.Piecewise) and expression.args[-1][1] == sympy.true:
        *cases, (otherwise, _) = expression.args
        result = to_json(otherwise)
        for value, condition in reversed(cases):
            result = ["select", to_json(condition), to_json(value), result]
        return result
    operator = _OPERATORS.get(type(expression))
    if operator is None or expression.func is sympy.Pow and not expression.args[1].is_nonnegative:
        return ["text", str(expression)]
    operands = [to_json(one) for one in expression.args]
    return ["text", str(expression)] if any(map(_is_text, operands)) else [operator, *operands]


def _is_text(expression: Expression) -> bool:
    return isinstance(expression, list) and expression[0] == "text"


def symbols_in(expression: Expression) -> set[str]:
    """The names of symbols in an expression."""
    if isinstance(expression, str):
        return {expression}
    if isinstance(expression, list) and not _is_text(expression):
        return set().union(*map(symbols_in, expression[1:]))
    return set()


def has_value(expression: Expression, symbols: Collection[str]) -> bool:
    """Whether the expression has a value if these symbols have values: a `text` has none."""
    if isinstance(expression, list):
        return not _is_text(expression) and all(has_value(one, symbols) for one in expression[1:])
    return not isinstance(expression, str) or expression in symbols


def to_python(expression: Expression) -> str:
    """The expression as Python source in the names of its symbols. It must not contain a `text`."""
    if isinstance(expression, list):
        if _is_text(expression):
            raise ValueError(f"the expression cannot be evaluated: {expression[1]}")
        return _PYTHON[expression[0]](*map(to_python, expression[1:]))
    return expression if isinstance(expression, str) else repr(expression)


def evaluate(expression: Expression, values: Mapping[str, int]) -> Any:
    """The value of an expression that has one (`has_value`), given the values of its symbols."""
    return eval(to_python(expression), {"__builtins__": {"min": min, "max": max}}, dict(values))
