"""Question: which number formats may tensors be in, and how large are they?"""

from __future__ import annotations

from collections.abc import Collection

from moeprof.errors import SpecError

DTYPE_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
MODEL_DTYPES = ("float32", "bfloat16", "float16")
"""What the bundled model computes in; the narrower ones need scales beside the values."""


def check_dtype(what: str, dtype: str, allowed: Collection[str] = MODEL_DTYPES) -> None:
    """Raise `SpecError` unless `dtype` is one of `allowed`; `what` names the field."""
    if dtype not in allowed:
        raise SpecError(f"{what}: expected one of {', '.join(allowed)}, found {dtype!r}.")


def chosen_dtype(what: str, asked: str | None, read: str | None, default: str) -> tuple[str, str]:
    """The dtype to use, and a sentence on where it is from: what is asked for wins.

    Args:
        what: the tensors in question, for the sentence.
        asked: by a flag, or None.
        read: in the model's own file, or None.
        default: where neither is there.

    Raises:
        SpecError: the chosen one is none of `DTYPE_BYTES`.
    """
    chosen = asked or read or default
    check_dtype(what, chosen, DTYPE_BYTES)
    if asked and read and asked != read:
        return chosen, f"{what} in {asked} as asked, not in {read} as the model's file says"
    source = "as asked" if asked else "as the model's file says" if read else "by default"
    return chosen, f"{what} in {chosen} {source}"
