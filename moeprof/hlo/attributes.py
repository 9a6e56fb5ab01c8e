"""What an instruction has beside its operands, as values and as ``key=value`` texts.

`HLO_OPS` keeps it in two columns: ``details``, which says what is computed, and ``attributes``,
which says what else it takes to run it again. Both are written and read here alone.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from typing import Any, NamedTuple

from moeprof.hlo.shape import Shape

Numbers = tuple[int, ...]
Rows = tuple[Numbers, ...]

_WHOLE = re.compile(r"-?\d{1,39}")


class DotDims(NamedTuple):
    """Dimensions of a product's operands; the last two of a ragged product alone."""

    lhs_contracting: Numbers = ()
    rhs_contracting: Numbers = ()
    lhs_batch: Numbers = ()
    rhs_batch: Numbers = ()
    lhs_ragged: Numbers = ()
    rhs_group: Numbers = ()


_NO_DOT = DotDims()


class GatherDims(NamedTuple):
    """GatherDimensionNumbers (xla/xla_data.proto), and the sizes of a slice."""

    offset_dims: Numbers = ()
    collapsed: Numbers = ()
    start_map: Numbers = ()
    operand_batching: Numbers = ()
    indices_batching: Numbers = ()
    index_vector: int = 0
    sizes: Numbers = ()


class ScatterDims(NamedTuple):
    """ScatterDimensionNumbers (xla/xla_data.proto)."""

    update_window: Numbers = ()
    inserted: Numbers = ()
    to_operand: Numbers = ()
    input_batching: Numbers = ()
    indices_batching: Numbers = ()
    index_vector: int = 0


@dataclass(frozen=True)
class Attributes:
    """Everything that instructions of any opcode have beside operands; what is absent is empty.

    Numbers that are absent are -1. ``constant`` is the value of a scalar of whole numbers,
    ``literal`` that of a scalar of floats; ``kernel_output`` the dimension of a convolution's
    kernel that counts the output's features. ``slices`` are (start, limit, stride), ``padding``
    (low, high, interior), ``window`` (size, stride, low, high, window dilation, base dilation,
    reversal) of each dimension; ``precision`` and ``algorithm`` are numbers of PrecisionConfig.
    ``splits`` are the parts into which each dimension of a program's argument is split over
    devices.
    """

    fusion_kind: str = ""
    tuple_index: int = -1
    constant: int | None = None
    dimensions: Numbers = ()
    direction: str = ""
    dot: DotDims = _NO_DOT
    kernel_output: int = -1
    is_stable: bool = False
    is_sorted: bool = False
    is_unique: bool = False
    exponent_bits: int = -1
    mantissa_bits: int = -1
    literal: float | None = None
    slices: Rows = ()
    padding: Rows = ()
    window: Rows = ()
    gather: GatherDims | None = None
    scatter: ScatterDims | None = None
    precision: Numbers = ()
    algorithm: int = 0
    comparison: str = ""
    splits: Numbers = ()

    @cached_property
    def details_text(self) -> str:
        """``kind=kLoop``, ``index=1``, ``value=4``, ``dimensions=0,1``, ``lhs_contracting=2`` …"""
        return " ".join(_details(self))

    @cached_property
    def details(self) -> Mapping[str, str]:
        """`details_text` by key."""
        return _by_key(self.details_text)

    @cached_property
    def _more_text(self) -> str:
        return " ".join(_more(self))


NO_ATTRIBUTES = Attributes()


def attributes_text(attributes: Attributes, shape: Shape) -> str:
    """What `Attributes.details_text` leaves out, and where the result lies in memory.

    ``layout=0,1`` and ``space=5`` as `layout_texts` writes them, ``literal=0.5``,
    ``slice=0:4:1,2:8:2``, ``padding=0:1:0``, ``window=3:1:0:0:1:1:0``, dimensions of gather and
    scatter, ``precision=0,2``, ``algorithm=3``, ``splits=2,1``.
    """
    place, more = shape.place_text, attributes._more_text
    return f"{place} {more}" if place and more else place or more


class Read(NamedTuple):
    """What two texts say: of the instruction, and of its result's place in memory."""

    attributes: Attributes
    layout: str
    space: str


@functools.lru_cache(maxsize=1 << 13)
def parse_attributes(details: str, attributes: str) -> Read:
    """What `Attributes.details_text` and `attributes_text` wrote; unknown keys are passed over."""
    texts = _by_key(f"{details} {attributes}")
    if not texts:
        return Read(NO_ATTRIBUTES, "", "")
    literal = texts.get("literal")
    found = Attributes(
        fusion_kind=texts.get("kind", ""),
        tuple_index=_number(texts, "index", -1),
        constant=_number(texts, "value", 0) if "value" in texts else None,
        dimensions=_numbers(texts, "dimensions"),
        direction=texts.get("direction", ""),
        dot=DotDims(*(_numbers(texts, name) for name in DotDims._fields)),
        kernel_output=_number(texts, "kernel_output", -1),
        is_stable="stable" in texts,
        is_sorted="sorted" in texts,
        is_unique="unique" in texts,
        exponent_bits=_number(texts, "exponent_bits", -1),
        mantissa_bits=_number(texts, "mantissa_bits", -1),
        literal=_float(literal) if literal is not None else None,
        slices=_rows(texts, "slice"),
        padding=_rows(texts, "padding"),
        window=_rows(texts, "window"),
        gather=_gather(texts) if "sizes" in texts else None,
        scatter=_scatter(texts) if "index_vector" in texts and "sizes" not in texts else None,
        precision=_numbers(texts, "precision"),
        algorithm=_number(texts, "algorithm", 0),
        comparison=texts.get("comparison", ""),
        splits=_numbers(texts, "splits"),
    )
    return Read(found, texts.get("layout", ""), texts.get("space", ""))


def _details(values: Attributes) -> Iterator[str]:
    if values.fusion_kind:
        yield f"kind={values.fusion_kind}"
    if values.tuple_index >= 0:
        yield f"index={values.tuple_index}"
    if values.constant is not None:
        yield f"value={values.constant}"
    if values.dimensions:
        yield f"dimensions={_joined(values.dimensions)}"
    if values.direction:
        yield f"direction={values.direction}"
    lists = [f"{n}={_joined(v)}" for n, v in zip(DotDims._fields, values.dot, strict=True) if v]
    yield from lists
    if values.kernel_output >= 0:
        yield f"kernel_output={values.kernel_output}"


def _more(values: Attributes) -> Iterator[str]:
    flags = {"stable": values.is_stable, "sorted": values.is_sorted, "unique": values.is_unique}
    yield from (f"{name}=1" for name, is_set in flags.items() if is_set)
    bits = {"exponent_bits": values.exponent_bits, "mantissa_bits": values.mantissa_bits}
    yield from (f"{name}={number}" for name, number in bits.items() if number >= 0)
    if values.literal is not None:
        yield f"literal={values.literal!r}"
    tables = {"slice": values.slices, "padding": values.padding, "window": values.window}
    yield from (f"{name}={_table(rows)}" for name, rows in tables.items() if rows)
    if values.gather is not None:
        yield from _lists(values.gather)
        yield f"sizes={_joined(values.gather.sizes)}"
    if values.scatter is not None:
        yield from _lists(values.scatter)
    if any(values.precision):
        yield f"precision={_joined(values.precision)}"
    if values.algorithm:
        yield f"algorithm={values.algorithm}"
    if values.comparison:
        yield f"comparison={values.comparison}"
    if values.splits:
        yield f"splits={_joined(values.splits)}"


def _lists(dims: GatherDims | ScatterDims) -> Iterator[str]:
    for name, values in zip(dims._fields, dims, strict=True):
        if isinstance(values, tuple) and values and name != "sizes":
            yield f"{name}={_joined(values)}"
    yield f"index_vector={dims.index_vector}"


def _joined(values: Numbers) -> str:
    return ",".join(map(str, values))


def _table(rows: Rows) -> str:
    return ",".join(":".join(map(str, row)) for row in rows)


def _by_key(text: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in text.split())


def _number(texts: Mapping[str, str], key: str, default: int) -> int:
    text = texts.get(key, "")
    return int(text) if _WHOLE.fullmatch(text) else default


def _numbers(texts: Mapping[str, str], key: str) -> Numbers:
    text = texts.get(key)
    return tuple(int(part) for part in text.split(",") if _WHOLE.fullmatch(part)) if text else ()


def _rows(texts: Mapping[str, str], key: str) -> Rows:
    text = texts.get(key)
    return tuple(tuple(map(int, _WHOLE.findall(row))) for row in text.split(",")) if text else ()


def scalar(number: float) -> float:
    """The number; of all NaN one and the same, so that instructions with it are equal."""
    return nan if isnan(number) else number


def _float(text: str) -> float | None:
    try:
        return scalar(float(text))
    except ValueError:
        return None


def _gather(texts: Mapping[str, str]) -> GatherDims:
    lists = {n: _numbers(texts, n) for n in GatherDims._fields if n != "index_vector"}
    return GatherDims(**lists, index_vector=_number(texts, "index_vector", 0))


def _scatter(texts: Mapping[str, str]) -> ScatterDims:
    lists = {n: _numbers(texts, n) for n in ScatterDims._fields if n != "index_vector"}
    return ScatterDims(**lists, index_vector=_number(texts, "index_vector", 0))


# What the configuration of a library's call says: the JSON that XLA hands to its backend.
#
# Messages are those of xla/service/gpu/backend_configs.proto.

_SIDES = DotDims._fields[:4]


@functools.lru_cache(maxsize=1 << 12)
def gemm_config(config: str) -> Mapping[str, Any] | None:
    """GemmBackendConfig of a product; None where it is another one, or cut."""
    try:
        found = json.loads(config)
        inner = found.get("gemm_backend_config", found)
        return inner if "dot_dimension_numbers" in inner else None
    except (ValueError, TypeError, AttributeError):
        return None


@functools.lru_cache(maxsize=1 << 12)
def dot_dims(config: str) -> DotDims | None:
    """Dimensions of the operands of a product; None where it has none."""
    product = gemm_config(config)
    if product is None:
        return None
    try:
        numbers = product["dot_dimension_numbers"]
        return DotDims(*(tuple(map(int, numbers.get(f"{s}_dimensions", ()))) for s in _SIDES))
    except (ValueError, TypeError, AttributeError):
        return None
