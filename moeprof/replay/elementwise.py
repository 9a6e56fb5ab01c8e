"""Question: which function of jax.lax is an HLO opcode that works element by element?"""

from __future__ import annotations

SAME = {
    **{"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "remainder": "rem"},
    **{"maximum": "max", "minimum": "min", "power": "pow", "atan2": "atan2", "complex": "complex"},
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"},
    **{"shift-left": "shift_left", "shift-right-logical": "shift_right_logical"},
    **{"shift-right-arithmetic": "shift_right_arithmetic", "clamp": "clamp", "select": "select"},
    **{"negate": "neg", "abs": "abs", "sign": "sign", "floor": "floor", "ceil": "ceil"},
    **{"exponential": "exp", "exponential-minus-one": "expm1", "log": "log"},
    **{"log-plus-one": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "cbrt": "cbrt", "tan": "tan"},
    **{"tanh": "tanh", "logistic": "logistic", "sine": "sin", "cosine": "cos", "erf": "erf"},
    **{"is-finite": "is_finite", "real": "real", "imag": "imag"},
    **{"popcnt": "population_count", "count-leading-zeros": "clz"},
    "opt-barrier": "optimization_barrier",
}
"""Opcodes whose operands are those of the function, in the same order."""

COMPARE = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}
