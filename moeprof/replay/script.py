"""Question: what does the script that runs one op again consist of?

It needs JAX alone. Inputs and results lie in memory as in the program: an array that it stores in
another order than row by row is made in that order and transposed in the function, which the
compiler turns into a layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeprof.errors import ReplayError
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import BITS, Shape
from moeprof.replay.target import Target
from moeprof.replay.terms import EXCHANGES, array_of, exchange, group_size, jnp_type
from moeprof.replay.translate import Translation, identifier, inverse

_WHOLE_BELOW = 128
_CONSTANT = "constant"
_SIZES = 2
"""Place of the sizes of groups among the operands of a ragged product."""


@dataclass(frozen=True)
class Script:
    """The text of a script; bytes of its inputs on one device; devices that it wants."""

    text: str
    input_bytes: int
    devices: int
    notes: tuple[str, ...]


def script_of(program: Program, target: Target, devices: int, flags: str) -> Script:
    """The script of one op.

    Args:
        program: that of the op.
        target: the op, and its time in the trace.
        devices: devices that share the program's work.
        flags: XLA_FLAGS of the run; empty where they are not known.

    Raises:
        ReplayError: something in the op has no translation.
    """
    op = program.ops[target.op]
    translation = Translation(program)
    given = list(dict.fromkeys(op.operands))
    fixed = [name for name in given if program.ops[name].opcode == _CONSTANT]
    made = [name for name in given if name not in fixed]
    arrays = [array_of(program.ops[name].result) for name in made]
    names = [identifier(name) for name in op.operands]
    shared = group_size(op, devices) if op.opcode in EXCHANGES else 1
    lines = [f"{identifier(n)} = {translation.expression(program.ops[n])}" for n in fixed]
    if op.opcode in EXCHANGES:
        value, bounds = exchange(op, names, program), {}
    else:
        value, found = translation.expression(op), translation.bounds_of(op)
        bounds = {op.operands[place]: bound for place, bound in found.items()}
    body = [*_restored(made, arrays), *lines, f"out = {value}", f"return {_stored(op)}"]
    notes = [*target.notes]
    sizes = op.operands[_SIZES] if op.opcode == "ragged-dot" else ""
    told = {*bounds, sizes}
    whole = [a for a, name in zip(arrays, made, strict=True) if a.is_whole and name not in told]
    if op.opcode == "ragged-all-to-all":
        inputs, balanced = _ragged_inputs(op, made, arrays, shared)
        notes.append(balanced)
    else:
        inputs = [
            _even_sizes(op, program) if n == sizes else _random(a, bounds.get(n))
            for n, a in zip(made, arrays, strict=True)
        ]
        if sizes in made:
            notes.append("balanced: groups of equal size, as the trace does not hold their sizes")
        if whole:
            notes.append(f"whole numbers that are no index are random, below {_WHOLE_BELOW}")
        if bounds:
            notes.append("indices are random within their arrays: the trace does not hold them")
    if op.opcode in EXCHANGES:
        notes.append(
            "a collective in a trace also waits for the last device; here all start at once"
        )
    if target.platform == "cpu" and devices > shared:
        here = "one runs" if shared == 1 else f"{shared} run"
        notes.append(
            f"{devices} devices of the trace share the cores of their hosts; here {here} alone"
        )
    functions = ["\n".join(text) for text in translation.functions.values()]
    text = _TEXT.format(
        about=_about(target, op, notes),
        flags=repr(_kept(flags)),
        devices=shared,
        trace=_trace(target),
        functions="\n\n\n".join([*functions, _function("run", made, body)]),
        inputs="\n".join(f"        {line}," for line in inputs),
    )
    size = sum(a.elements * -(-BITS[a.dtype] // 8) for a in arrays)
    return Script(text, size, shared, tuple(notes))


def _function(name: str, parameters: Sequence[str], body: Sequence[str]) -> str:
    lines = [f"def {name}({', '.join(map(identifier, parameters))}):", *(f"    {b}" for b in body)]
    return "\n".join(lines)


def _restored(names: Sequence[str], arrays: Sequence[Shape]) -> list[str]:
    return [
        f"{identifier(n)} = lax.transpose({identifier(n)}, {inverse(a.stored_order)})"
        for n, a in zip(names, arrays, strict=True)
        if a.layout
    ]


def _stored(op: Op) -> str:
    """The result as it lies in memory; the parts of a tuple row by row."""
    if op.result.is_tuple or not op.result.layout:
        return "out"
    return f"lax.transpose(out, {op.result.stored_order})"


def _random(array: Shape, bound: int | None) -> str:
    high = max(bound, 1) if bound is not None else _WHOLE_BELOW
    return f"random({array.stored_dims}, {jnp_type(array)}, {high})"


def _even_sizes(op: Op, program: Program) -> str:
    """Sizes of the groups of a ragged product that together have all of its rows."""
    lhs, sizes = (program.ops[op.operands[place]].result for place in (0, _SIZES))
    rows, groups = lhs.dims[op.attributes.dot.lhs_ragged[0]], sizes.dims[-1]
    even = f"jnp.full({sizes.stored_dims}, {rows // groups}, {jnp_type(sizes)})"
    return f"{even}.at[..., 0].add({rows % groups})" if rows % groups else even


def _ragged_inputs(
    op: Op, names: Sequence[str], arrays: Sequence[Shape], peers: int
) -> tuple[list[str], str]:
    """Inputs of a ragged exchange in which every device sends every other one the same rows."""
    if len(names) != 6 or any(a.layout for a in arrays):
        raise ReplayError(
            f"{op.name} ({op.opcode}) shares operands, or lays them out: not translated"
        )
    pieces = arrays[2].dims[0]
    rows = min(arrays[0].dims[0], arrays[1].dims[0]) // pieces
    per_peer = pieces // peers
    offsets = f"jnp.arange({pieces}) * {rows}"
    mine = f"jnp.arange({pieces}) % {per_peer} * {rows} + DEVICE * {per_peer * rows}"
    kinds = [offsets, f"jnp.full({pieces}, {rows})", mine, f"jnp.full({pieces}, {rows})"]
    whole = [f"({k}).astype({jnp_type(a)})" for k, a in zip(kinds, arrays[2:], strict=True)]
    rest = [_random(a, None) for a in arrays[:2]]
    return [*rest, *whole], (
        f"balanced: every device sends each of the {pieces} pieces {rows} rows, as the trace does "
        "not hold their sizes"
    )


def _kept(flags: str) -> str:
    """Flags without those that write files."""
    return " ".join(flag for flag in flags.split() if not flag.startswith("--xla_dump"))


def _trace(target: Target) -> str:
    return repr(
        {
            "op": target.op,
            "platform": target.platform,
            "device": target.device,
            "jax": target.jax_version,
            "median_ns": target.median_ns,
            "calls": target.calls,
        }
    )


def _about(target: Target, op: Op, notes: Sequence[str]) -> str:
    scope = f"\n{target.op_name}\n" if target.op_name else ""
    said = "".join(f"\n- {note}" for note in notes)
    text = f"{op.opcode} {op.name}: {op.shape}\n{scope}{said}"
    return text.replace("\\", "/").replace('"""', "'''")


_TEXT = '''"""Runs one op of a recorded program again. Written by `moeprof replay`.

{about}
"""

import json
import os
import statistics
import sys
import time

FLAGS = {flags}
DEVICES = {devices}
TRACE = {trace}

os.environ.setdefault("XLA_FLAGS", FLAGS)
if DEVICES > 1:
    os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={{DEVICES}}"

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_enable_x64", True)


{functions}


def inputs(DEVICE):
    """The operands on one device, as they lie in memory."""
    keys = iter(jax.random.split(jax.random.key(DEVICE), 1000))

    def random(shape, dtype, high):
        if dtype == jnp.bool_:
            return jax.random.bernoulli(next(keys), 0.5, shape)
        if jnp.issubdtype(dtype, jnp.integer):
            return jax.random.randint(next(keys), shape, 0, high).astype(dtype)
        kind = dtype if jnp.issubdtype(dtype, jnp.complexfloating) else jnp.float32
        return jax.random.normal(next(keys), shape, kind).astype(dtype)

    return (
{inputs}
    )


def prepared():
    """The compiled op, its operands and the devices that it runs on."""
    devices = jax.devices()
    if len(devices) < DEVICES:
        devices = jax.devices("cpu")
    devices = devices[:DEVICES]
    if DEVICES == 1:
        with jax.default_device(devices[0]):
            return jax.jit(run), jax.jit(lambda: inputs(0))(), devices
    mesh = Mesh(devices, ("x",))
    spec = PartitionSpec("x")

    def on_one(*operands):
        out = run(*(operand[0] for operand in operands))
        return jax.tree.map(lambda part: part[None], out)

    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *[inputs(d) for d in range(DEVICES)])
    placed = jax.device_put(stacked, NamedSharding(mesh, spec))
    mapped = jax.shard_map(on_one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped), placed, devices


def timed(call, operands):
    """Median time of a call in ns: of rounds of at least 20 ms each, one wait at their end."""
    jax.block_until_ready(call(*operands))
    begin = time.perf_counter_ns()
    jax.block_until_ready(call(*operands))
    calls = max(1, int(20e6 // (time.perf_counter_ns() - begin)))
    rounds = []
    end = time.perf_counter_ns() + 2_000_000_000
    while len(rounds) < 3 or (len(rounds) < 50 and time.perf_counter_ns() < end):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            out = call(*operands)
        jax.block_until_ready(out)
        rounds.append((time.perf_counter_ns() - begin) / calls)
    return round(statistics.median(rounds)), len(rounds) * calls


def measured():
    """Times of the op and of a call that computes one number: what launching alone takes."""
    call, operands, devices = prepared()
    one = jax.device_put(jnp.float32(1), NamedSharding(Mesh(devices, ("x",)), PartitionSpec()))
    empty_ns, _ = timed(jax.jit(lambda number: number + 1), (one,))
    return *timed(call, operands), empty_ns, devices[0]


def main():
    """Print the time of a call here beside that in the trace, and the same as JSON."""
    median_ns, calls, empty_ns, device = measured()
    platform = "gpu" if device.platform in ("gpu", "cuda", "rocm") else device.platform
    is_same = platform == TRACE["platform"] and TRACE["device"] in ("", device.device_kind)
    traced = TRACE["median_ns"]
    remark = "" if is_same and traced else "other devices, or no traced time: no ratio"
    if not remark and median_ns < 2 * empty_ns:
        remark = f"an empty call takes {{empty_ns}} ns here: too short to be timed, no ratio"
    ratio = None if remark else median_ns / traced
    print(f"traced    {{traced}} ns on {{TRACE['device'] or TRACE['platform']}}")
    print(f"replayed  {{median_ns}} ns on {{device.device_kind}}")
    print(remark or f"ratio     {{ratio:.3f}}")
    found = {{"median_ns": median_ns, "calls": calls, "platform": platform}}
    found |= {{"device": device.device_kind, "jax": jax.__version__, "ratio": ratio}}
    found |= {{"empty_call_ns": empty_ns, "remark": remark}}
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
'''
