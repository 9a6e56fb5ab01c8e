"""Question: what does the compiler's dump of a lowered function say, as a `StepPlan`?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

import pandas as pd

from moeprof.analyzers.heap.at_peak import main_module
from moeprof.errors import CompileError
from moeprof.hlo.program import Program
from moeprof.projector.any_step.exported import Lowered
from moeprof.projector.any_step.mesh import ALONE
from moeprof.projector.any_step.program import (
    collectives_table,
    executed,
    is_foreign,
    named,
    ops_table,
    roofline_of,
)
from moeprof.projector.any_step.result import (
    ARGUMENTS,
    UNKNOWNS,
    StepPlan,
    content_of,
    with_contents,
)
from moeprof.projector.compiled import Target
from moeprof.projector.compiled.result import LaidOut, read_plan
from moeprof.projector.outside import reserve_rows
from moeprof.projector.setting import GPU_FRACTION
from moeprof.specs.hardware import HardwareSpec, load_hardware
from moeprof.tables.compiled_memory import NOT_REPORTED
from moeprof.units import format_bytes

_LARGE_CONSTANTS = 2**20
_MOST_NAMES = 3
_OUR_EXCHANGES = "moeprof_moe_"
_PRODUCTS = frozenset({"gemm", "grouped gemm", "convolution", "attention", "causal attention"})


def read_step(
    laid_out: LaidOut, lowered: Lowered, target: Target, mem_fraction: float | None
) -> StepPlan:
    """The plan of one device.

    Raises:
        CompileError: the compiler states no sizes.
    """
    spec = load_hardware(target.key)
    passed = [argument for argument in lowered.arguments if argument.is_passed]
    trace = named(laid_out.trace, lowered.name, [argument.name for argument in passed])
    found = read_plan(laid_out._replace(trace=trace), spec, target.devices, {})
    sizes, module = found.memory, main_module(trace)
    if sizes.argument_bytes is None or sizes.output_bytes is None or sizes.temp_bytes is None:
        raise CompileError(f"plan {lowered.name}: expected sizes, found them {NOT_REPORTED}.")
    program = trace.programs[module]
    arguments = _arguments(program, lowered)
    constants = max(dict(sizes.more).get("constant_bytes", 0), 0)
    ops = ops_table(trace, module, spec)
    collectives = collectives_table(trace, module, lowered.axes, spec)
    return StepPlan(
        name=lowered.name,
        hardware=spec,
        devices=target.devices,
        axes=lowered.axes,
        compiler=f"{found.compiler} for {target.platform.upper()}, target {target.key}",
        arguments_bytes=sizes.argument_bytes,
        outputs_bytes=sizes.output_bytes,
        aliased_bytes=sizes.alias_bytes or 0,
        temporaries_bytes=sizes.temp_bytes,
        library_temporaries_bytes=found.library_temp_bytes,
        is_range_known=found.is_range_known,
        constants_bytes=constants,
        buffers=with_contents(found.buffers, arguments, constants),
        arguments=arguments,
        ops=ops,
        collectives=collectives,
        roofline=roofline_of(ops, collectives, spec),
        unknowns=UNKNOWNS.frame(list(_unknowns(program, ops, collectives))),
        outside=_outside(spec, target.devices if len(collectives) else 1),
        mem_fraction=GPU_FRACTION if mem_fraction is None else mem_fraction,
        compile_s=found.compile_s,
        notes=(*_notes(lowered, arguments, constants, mem_fraction), *found.notes),
    )


def _arguments(program: Program, lowered: Lowered) -> pd.DataFrame:
    """`ARGUMENTS`: all that the function is given, in its order."""
    given = {op.parameter: op for op in program.arguments}
    places = iter(range(len(lowered.arguments)))
    rows = []
    for argument in lowered.arguments:
        op = given.get(next(places)) if argument.is_passed else None
        rows.append(
            {
                "argument": argument.name,
                "content": content_of(argument.name, argument.is_float),
                "shape": f"[{','.join(map(str, argument.shape))}]",
                "dtype": argument.dtype,
                "split": ",".join(map(str, op.attributes.splits)) if op else "",
                "size_bytes": op.size_bytes if op else 0,
                "is_donated": argument.is_donated,
                "is_passed": argument.is_passed,
            }
        )
    return ARGUMENTS.frame(rows)


def _outside(spec: HardwareSpec, ranks: int) -> dict[str, int]:
    """Context and communicators; those of no collective take nothing."""
    rows = reserve_rows(spec, ranks, 1, "devices")
    sizes = {row.name: int(row.size_bytes) for row in rows if row.size_bytes is not None}
    return {name: size for name, size in sizes.items() if size}


def _unknowns(
    program: Program, ops: pd.DataFrame, collectives: pd.DataFrame
) -> Iterator[dict[str, object]]:
    """`UNKNOWNS`: what no figure counts."""
    foreign = Counter(
        member.target
        for op in executed(program)
        for member in program.interior(op)
        if is_foreign(member)
    )
    for target, count in sorted(foreign.items()):
        missing = "its FLOPs, its time, and memory of its own beside operands and results"
        yield _unknown("custom call", target, count, missing)
    for opcode, count in sorted(
        Counter(collectives["opcode"][collectives["bytes"].isna()]).items()
    ):
        missing = "its bytes, which the routing decides, and its time at least"
        yield _unknown("collective", opcode, count, missing)
    unsized = ops[ops["flops"].isna() & ops["kind"].ne("custom call")]
    for kind, count in sorted(Counter(unsized["kind"]).items()):
        yield _unknown("product", kind, count, "its FLOPs and its time")
    for table, what in ((ops, "op"), (collectives, "collective")):
        uncounted = table[table["runs"].lt(0)]
        if len(uncounted):
            missing = "how often it runs, in a branch or a loop without a known count"
            yield _unknown(what, _listed(uncounted["op"].tolist()), len(uncounted), missing)
    if tuned := int(ops["kind"].isin(_PRODUCTS).sum()):
        missing = "no product is timed here: a run may choose other kernels, with scratch memory"
        yield _unknown("autotuner's workspace", "products", tuned, missing)


def _unknown(what: str, name: str, count: int, missing: str) -> dict[str, object]:
    return {"what": what, "name": name, "count": count, "missing": missing}


def _notes(
    lowered: Lowered, arguments: pd.DataFrame, constants: int, mem_fraction: float | None
) -> Iterator[str]:
    """What was assumed, and what an argument's figures do not say."""
    has_several = prod(lowered.axes.values()) > 1
    if has_several and ALONE in lowered.axes:
        yield "no mesh was given, so taken: every device does the whole step on arrays of its own"
    elif has_several and not lowered.is_placed:
        yield "no sharding of an argument or result: every device is given all of each argument"
    free = [
        argument.name for argument in lowered.arguments if argument.is_free and argument.is_passed
    ]
    if free:
        yield f"arguments without a sharding, which the compiler may split: {_listed(free)}"
    unused = [argument for argument in lowered.arguments if not argument.is_passed]
    if unused:
        yield (
            "arguments that the step does not use are no part of its program, and in no figure: "
            f"{_listed([argument.name for argument in unused])}"
        )
    hosted = [argument.name for argument in lowered.arguments if argument.is_on_host]
    if hosted:
        yield (
            "arguments in the host's memory are counted as the device's, since this compiler "
            f"plans no other: {_listed(hosted)}"
        )
    if lowered.exchange and any(call.startswith(_OUR_EXCHANGES) for call in lowered.calls):
        ranks, axis = lowered.exchange
        yield (
            f"tokens are exchanged by moeprof.kernels among {ranks} ranks, the mesh axis {axis!r}; "
            "ep_axis names another"
        )
    if constants >= _LARGE_CONSTANTS:
        yield (
            f"{format_bytes(constants)} of constants lie whole on every device, as arrays do that "
            "the function closes over; give those as arguments to split them"
        )
    if mem_fraction is None:
        yield (
            f"mem_fraction not given, so taken: {GPU_FRACTION:g}; JAX's own is 0.75 "
            "(XLA_PYTHON_CLIENT_MEM_FRACTION)"
        )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
