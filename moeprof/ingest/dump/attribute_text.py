"""Reads what stands behind the operands of an instruction, where it is written as HLO text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from moeprof.hlo.attributes import (
    Attributes,
    DotDims,
    GatherDims,
    Numbers,
    Rows,
    ScatterDims,
    scalar,
)
from moeprof.hlo.instruction import Groups, parse_groups
from moeprof.hlo.shape import Shape

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_LIST = re.compile(r"(?<![\w])(\w+)=\{([\d,]*)\}")
_WORD = re.compile(r"(?<![\w])(\w+)=([\w.\-]+)")
_WINDOW = re.compile(r"\bwindow=\{([^{}]*)\}")
_SLICE = re.compile(r"\bslice=\{([\[\]\d:, ]*)\}")
_PRECISION = re.compile(r"\boperand_precision=\{([\w,]*)\}")
_GROUPS = re.compile(r"\breplica_groups=(\{(?:\{[\d,]*\},?)*\}|[^\s{]+)")
_PAIRS = re.compile(r"\bsource_target_pairs=(\{(?:\{\d+,\d+\},?)*\})")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|(?P<last>condition)|true_computation|false_computation|select|scatter)"
    r"=%?(?P<one>[\w.\-]+)|\b(?:branch_computations|called_computations)=\{(?P<several>[^{}]*)\}"
)
_LEVELS = {"default": 0, "high": 1, "highest": 2}
"""PrecisionConfig.Precision of xla/xla_data.proto."""

_DOT = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch", "lhs_ragged", "rhs_group")
_GATHER = {
    **{"offset_dims": "offset_dims", "collapsed": "collapsed_slice_dims"},
    **{"start_map": "start_index_map", "operand_batching": "operand_batching_dims"},
    **{"indices_batching": "start_indices_batching_dims", "sizes": "slice_sizes"},
}
_SCATTER = {
    **{"update_window": "update_window_dims", "inserted": "inserted_window_dims"},
    **{"to_operand": "scatter_dims_to_operand_dims", "input_batching": "input_batching_dims"},
    "indices_batching": "scatter_indices_batching_dims",
}


@dataclass(frozen=True)
class AttributeText:
    """The text behind the operands, and the values in it."""

    text: str

    @cached_property
    def _plain(self) -> str:
        """Without what stands between quotes: names and files may look like anything."""
        return _QUOTED.sub('""', self.text)

    @cached_property
    def _lists(self) -> dict[str, Numbers]:
        found = _LIST.findall(self._plain)
        return {name: _numbers(text, ",") for name, text in found}

    @cached_property
    def _words(self) -> dict[str, str]:
        return dict(_WORD.findall(self._plain))

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it calls, in the order of a proto: the body first."""
        found = list(_CALLED.finditer(self._plain))
        found.sort(key=lambda match: bool(match["last"]))
        texts = (match["several"] or match["one"] or "" for match in found)
        return tuple(name for text in texts for name in re.findall(r"[\w.\-]+", text))

    @property
    def groups(self) -> Groups:
        """Groups of devices of a collective."""
        found = _GROUPS.search(self._plain)
        return parse_groups(found[1].rstrip(",")) if found else ()

    @property
    def pairs(self) -> Groups:
        """Source and target of each piece of a permutation."""
        found = _PAIRS.search(self._plain)
        return parse_groups(found[1]) if found else ()

    def number(self, name: str) -> int:
        """A whole number; -1 where it is absent."""
        return _number(self._words.get(name, ""), -1)

    def word(self, name: str) -> str:
        """A word; empty where it is absent."""
        return self._words.get(name, "")

    def attributes(self, opcode: str, inside: str, result: Shape) -> Attributes:
        """All of it as values; `inside` is what stands in place of the operands."""
        lists = self._lists
        constant, literal = _value(inside.strip(), result) if opcode == "constant" else (None, None)
        return Attributes(
            fusion_kind=self.word("kind") if opcode == "fusion" else "",
            tuple_index=self.number("index"),
            constant=constant,
            dimensions=_numbers(self.word("iota_dimension"), ",") or lists.get("dimensions", ()),
            direction=self.word("direction"),
            dot=DotDims(*(lists.get(f"{side}_dims", ()) for side in _DOT)),
            kernel_output=_kernel_output(self.word("dim_labels")),
            is_stable=self.word("is_stable") == "true",
            is_sorted=self.word("indices_are_sorted") == "true",
            is_unique=self.word("unique_indices") == "true",
            exponent_bits=self.number("exponent_bits"),
            mantissa_bits=self.number("mantissa_bits"),
            literal=literal,
            slices=_slices(self._plain),
            padding=_padding(self.word("padding")),
            window=_window(self._plain),
            gather=self._gather() if opcode == "gather" else None,
            scatter=self._scatter() if opcode == "scatter" else None,
            precision=_precision(self._plain),
            comparison=self.word("type") if opcode == "compare" else "",
        )

    def _gather(self) -> GatherDims:
        lists = {field: self._lists.get(name, ()) for field, name in _GATHER.items()}
        return GatherDims(**lists, index_vector=max(self.number("index_vector_dim"), 0))

    def _scatter(self) -> ScatterDims:
        lists = {field: self._lists.get(name, ()) for field, name in _SCATTER.items()}
        return ScatterDims(**lists, index_vector=max(self.number("index_vector_dim"), 0))


def _number(text: str, default: int) -> int:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else default


def _numbers(text: str, between: str) -> Numbers:
    return tuple(_number(part, 0) for part in text.split(between) if part)


def _value(text: str, result: Shape) -> tuple[int | None, float | None]:
    """Value of a scalar: of whole numbers, of floats."""
    if not result.is_array or result.dims:
        return None, None
    if result.dtype == "pred":
        return {"false": 0, "true": 1}.get(text), None
    if result.is_whole:
        return (int(text) if re.fullmatch(r"-?\d{1,20}", text) else None), None
    is_number = result.is_float and re.fullmatch(r"-?(inf|nan|[\d.]+(e[+-]?\d+)?)", text)
    return None, scalar(float(text)) if is_number and text.count(".") < 2 else None


def _kernel_output(labels: str) -> int:
    """Place of ``o`` in the middle of ``b01f_01io->b01f``."""
    return labels.partition("_")[2].partition("-")[0].find("o")


def _slices(text: str) -> Rows:
    """``{[0:4], [2:8:2]}``: start, limit, stride."""
    found = _SLICE.search(text)
    parts = re.findall(r"\[(\d+):(\d+)(?::(\d+))?\]", found[1]) if found else []
    return tuple((_number(a, 0), _number(b, 0), _number(c, 1)) for a, b, c in parts)


def _padding(text: str) -> Rows:
    """``0_0x1_2_1``: low, high, interior."""
    rows = (_numbers(part, "_") for part in text.split("x") if part)
    return tuple((*row, 0)[:3] for row in rows if len(row) in (2, 3))


def _window(text: str) -> Rows:
    found = _WINDOW.search(text)
    values = dict(_WORD.findall(found[1])) if found else {}
    sizes = _numbers(values.get("size", ""), "x")

    def each(name: str, unless: int) -> Numbers:
        return _numbers(values.get(name, ""), "x") or (unless,) * len(sizes)

    pads = [_numbers(part, "_") for part in values.get("pad", "").split("x") if part]
    pads = pads if len(pads) == len(sizes) else [(0, 0)] * len(sizes)
    columns = (
        *(sizes, each("stride", 1), [p[0] for p in pads], [p[-1] for p in pads]),
        *(each("rhs_dilate", 1), each("lhs_dilate", 1), each("rhs_reversal", 0)),
    )
    return tuple(zip(*columns, strict=False))


def _precision(text: str) -> Numbers:
    found = _PRECISION.search(text)
    levels = tuple(_LEVELS.get(word, 0) for word in found[1].split(",")) if found else ()
    return levels if any(levels) else ()
