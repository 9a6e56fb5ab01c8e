"""Question: which part of the step is each instruction, and how is that known?

The evidence, strongest first; the first that speaks decides:

1. target     the custom call's name (grouped GEMM, dispatch, combine)
2. scope      `jax.named_scope` and module names in the op_name, innermost first
3. function   functions, classes and files of the source frames, innermost first
4. parameter  the name of the weight that a product reads
5. structure  what the program computes there (`structure`)
6. primitive  the JAX primitive at the end of the op_name, where it serves one purpose alone
7. neighbour  where nothing above speaks: the ops that read and write the same values

A name that says "MoE layer" only is refined by structure, and what encloses the layer (a block
called "mlp", say) no longer counts. Collectives outside the MoE layer's
exchanges are a part of their own, whoever asked for them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

import pandas as pd

from moeprof.analyzers.classify.arguments import reads_arguments, reads_named_weights
from moeprof.analyzers.classify.components import COLLECTIVES, COPIES, EXCHANGES, LOOPS, MOE
from moeprof.analyzers.classify.flow import Flow
from moeprof.analyzers.classify.kinds import kind_of
from moeprof.analyzers.classify.layers import layer_kinds
from moeprof.analyzers.classify.names import (
    MOE_CONTEXT,
    component_of,
    component_of_primitive,
    innermost,
    scopes,
)
from moeprof.analyzers.classify.neighbours import exchanged, spread
from moeprof.analyzers.classify.phase import phase_of
from moeprof.analyzers.classify.structure import (
    Structure,
    find_structure,
    is_expert_product,
    is_top_k,
)
from moeprof.analyzers.classify.targets import component_of_target
from moeprof.hlo.program import Frame, Op, Program, array_dims
from moeprof.tables.schema import Column, Schema

CLASSES = Schema(
    "classes",
    (
        Column("module", "int64", "", "program id"),
        Column("op", "text", "", "HLO instruction"),
        Column("component", "text", "", "part of the step"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("evidence", "text", "", "what decided: target, scope, function, …"),
        Column("op_kind", "text", "", "kind of operation: gemm, sort, all_gather, …"),
        Column("layer_kind", "text", "", "kind of layer: moe_layer, dense_layer, head, …"),
        Column("is_collective", "bool", "", "whether it moves data between devices"),
        Column("source", "text", "", "file:line of the user's program; empty where unknown"),
    ),
)

_LIBRARY = re.compile(
    r"(site|dist)-packages/(jax|jaxlib|flax|optax|haiku|equinox|chex|numpy|absl|orbax|qwix)/|"
    r"(^|/)moeprof/capture/|^<"
)
"""Files that no model is written in: frameworks, what calls it while it is captured, and what
Python names ``<frozen runpy>``."""
_EXPERTS_WORK = frozenset({"grouped_gemm", "expert_elementwise", "moe_other"})
_ENCLOSING = frozenset({"loss", "optimizer"})  # functions of these names often wrap everything
_VAGUE = ("other", "moe_other")
_IN_LAYER = MOE | {"shared_expert"}
_EXPERT_SCOPE = re.compile(r"ffn_act|wi(_\d)?|wo|w[123]")
"""Scopes of a MoE layer in which its experts multiply or apply their activation."""
_MATMUL_CALLS = ("__cublas$gemm", "__cublas$lt$matmul")
_STEM = re.compile(
    r"moe(_layers?)?|mixture_of_experts|router|experts|attentions?(_mla)?|norms|normalizations?|"
    r"embeddings?|optimizers?|losses"
)
"""Files whose name alone tells what is in them."""


@dataclass(frozen=True)
class Finding:
    """Component of an op and the evidence for it."""

    component: str
    evidence: str


def classify(programs: Mapping[int, Program]) -> pd.DataFrame:
    """`CLASSES` of every instruction of the programs, which are given by their ids."""
    rows = [
        row for module in sorted(programs) for row in _classify_module(module, programs[module])
    ]
    return CLASSES.frame(rows)


def _classify_module(module: int, program: Program) -> list[dict[str, object]]:
    structure, flow = find_structure(program), Flow(program)
    findings = {op.name: _finding(program, structure, op) for op in program.ops.values()}
    labels = {
        name: (found.component, phase_of(best_name(program, program.ops[name])))
        for name, found in findings.items()
        if found is not None and found.component not in (*_VAGUE, "loop_gaps")
    }
    voters = [op for op in program.ops.values() if op.name not in labels and _may_vote(program, op)]
    voted = spread(program, flow, labels, voters)
    vague = {op.name for op in voters if _is_moe_other(findings[op.name])}
    in_layer = {
        name: label
        for name, label in {**voted, **labels}.items()
        if label[0] in _IN_LAYER and name not in vague
    }
    voted |= spread(program, flow, in_layer, [program.ops[name] for name in sorted(vague)])
    for op in voters:
        if program.opcodes(op) & EXCHANGES:
            voted[op.name] = exchanged(program, op, {**voted, **labels})
    rows = [
        _row(module, program, op, findings[op.name], voted.get(op.name))
        for op in program.ops.values()
    ]
    known = {str(row["op"]): (str(row["component"]), "") for row in rows}
    kinds = layer_kinds(program, flow, known)
    for row, op in zip(rows, program.ops.values(), strict=True):
        row["op_kind"] = kind_of(program, op, str(row["component"]))
        row["layer_kind"] = kinds.get(op.name, "outside")
    return rows


def _is_moe_other(found: Finding | None) -> bool:
    return found is not None and found.component == "moe_other"


def _may_vote(program: Program, op: Op) -> bool:
    """Whether an op without a part belongs to its neighbours: no name of its own says otherwise.

    So do ops that only move what neighbours compute (a loop's slices), and arithmetic between the
    parts of the differentiated function (the addition of a residual).
    """
    if op.opcode in LOOPS:
        return False
    if not (op.op_name or op.frames):
        return True  # made by the compiler, be a part of it named
    return program.only_moves(op) or phase_of(best_name(program, op)) != "other"


def _row(
    module: int, program: Program, op: Op, found: Finding | None, vote: tuple[str, str] | None
) -> dict[str, object]:
    phase = phase_of(best_name(program, op))
    is_in_layer = _is_moe_other(found)
    if is_in_layer and (vote is None or vote[0] not in _IN_LAYER):
        vote = None
    if found is None or (found.component in _VAGUE and vote):
        if op.opcode in COPIES and not is_in_layer:
            found = Finding("copies", "opcode")
        elif vote:
            found = Finding(_refined(program, op, vote[0]), "neighbour")
        else:
            found = Finding("unattributed", "none")
        phase = vote[1] if vote and phase == "other" else phase
    return {
        "module": module,
        "op": op.name,
        "component": found.component,
        "phase": phase,
        "evidence": found.evidence,
        "is_collective": bool(program.opcodes(op) & COLLECTIVES),
        "source": source_of(op.frames),
    }


def is_library(frame: Frame) -> bool:
    """Whether a line is of a library: no model is written there."""
    return _LIBRARY.search(frame.file) is not None


@functools.lru_cache(maxsize=1 << 13)
def source_of(frames: tuple[Frame, ...]) -> str:
    """Innermost line that is not a library's, as ``file:line``; else the innermost."""
    own = [frame for frame in frames if not is_library(frame)] or list(frames[:1])
    return f"{own[0].file}:{own[0].line}" if own else ""


def _finding(program: Program, structure: Structure, op: Op) -> Finding | None:
    """What is known of an op by itself; None where it has neither name nor source."""
    if op.opcode in LOOPS:
        return Finding("loop_gaps", "opcode")  # its self time is what its body leaves
    targets = (component_of_target(member.target) for member in program.interior(op))
    by_target = next((component for component in targets if component), None)
    if by_target:
        return Finding(by_target, "target")
    found = _by_names(program, structure, op)
    if program.opcodes(op) & COLLECTIVES:
        return _collective(program, op, found)
    return found


def _collective(program: Program, op: Op, found: Finding | None) -> Finding | None:
    """MoE exchanges keep their part; moving weights and gradients, or a merged op, does not.

    None for an all-to-all that lost its name: what it exchanges tells (`neighbours.exchanged`).
    """
    opcodes = program.opcodes(op)
    if found is None and opcodes & EXCHANGES:
        return None
    is_named = found is not None and found.evidence == "scope"
    if found is not None and is_named and found.component in ("weight_gather", "gradient_reduce"):
        return found
    is_way = is_named and _is_way(found)
    is_mixed = len({_by_scopes([path]) for path in scopes(op.op_name)}) > 1
    is_sent = not is_mixed and _is_way(found) and (is_named or bool(opcodes & EXCHANGES))
    if reads_arguments(program, op) and (not is_sent or reads_named_weights(program, op)):
        return Finding("weight_gather" if "all-gather" in opcodes else "collectives", "parameter")
    if not is_way and _sums_gradients(program, op):
        return Finding("gradient_reduce", "structure")
    is_exchange = found is not None and (
        found.component in MOE - _EXPERTS_WORK
        or (found.component in _EXPERTS_WORK and bool(opcodes & EXCHANGES))
    )
    if is_exchange and not is_mixed:
        return found
    return Finding("collectives", "opcode")


def _is_way(found: Finding | None) -> bool:
    return found is not None and found.component in ("dispatch", "combine")


def _sums_gradients(program: Program, op: Op) -> bool:
    """A sum over devices in the backward pass of arrays with the shape of the program's weights.

    The weights may be sharded over the same devices: then one dimension is that many times longer,
    as in an all-reduce of which each device keeps its share.
    """
    if not program.opcodes(op) & {"all-reduce", "reduce-scatter"}:
        return False
    if phase_of(best_name(program, op)) != "backward":
        return False
    longer = op.group_size
    for dims in array_dims(op.shape):
        shards = [
            tuple(sorted([*dims[:at], d // longer, *dims[at + 1 :]]))
            for at, d in enumerate(dims)
            if longer and d % longer == 0
        ]
        if any(tuple(n for n in one if n != 1) in program.weight_dims for one in (dims, *shards)):
            return True
    return False


def _by_names(program: Program, structure: Structure, op: Op) -> Finding | None:
    name = best_name(program, op)
    frames = best_frames(program, op)
    if not name and not frames:
        return None
    by_scope = _by_scopes(scopes(name))
    by_function = _by_frames(frames, phase_of(name), in_moe=by_scope == MOE_CONTEXT)
    if by_scope == "dense_mlp" and by_function in (MOE_CONTEXT, *MOE):
        by_scope = MOE_CONTEXT  # experts are feed-forward layers too: "ffn_act" in class RoutedMoE
    if by_function == "dense_mlp" and structure.is_shared_expert(frames):
        by_function = "shared_expert"
    if by_scope not in (None, MOE_CONTEXT):
        return Finding(_refined(program, op, str(by_scope)), "scope")
    if by_function not in (None, MOE_CONTEXT):
        return Finding(_refined(program, op, str(by_function)), "function")
    is_moe = MOE_CONTEXT in (by_scope, by_function)
    if is_moe and any(_EXPERT_SCOPE.fullmatch(s) for path in scopes(name) for s in path):
        return Finding(_refined(program, op, "grouped_gemm"), "scope")
    by_parameter = _by_parameter(program, structure, op, in_moe=is_moe)
    if by_parameter:
        return Finding(by_parameter, "parameter")
    by_structure = _by_structure(program, structure, op, (name, frames))
    if by_structure:
        return Finding(by_structure, "structure")
    if is_moe and is_top_k(op):
        return Finding("router", "primitive")
    if is_moe and _is_batched_product(program, op):
        return Finding("grouped_gemm", "structure")
    by_primitive = component_of_primitive(name)
    if by_primitive:
        return Finding(_refined(program, op, by_primitive), "primitive")
    return Finding("moe_other" if is_moe else "other", "function" if is_moe else "none")


def _by_scopes(paths: list[list[str]]) -> str | None:
    """The innermost scope that stands for something; of merged paths the first that is definite."""
    found = [innermost(component_of(scope) for scope in reversed(path)) for path in paths]
    definite = [component for component in found if component not in (None, MOE_CONTEXT)]
    return definite[0] if definite else MOE_CONTEXT if MOE_CONTEXT in found else None


@functools.lru_cache(maxsize=1 << 13)
def _by_frames(frames: tuple[Frame, ...], phase: str, *, in_moe: bool) -> str | None:
    """The same for functions, classes and files."""
    return innermost(_components_of_frames(frames, phase), in_moe=in_moe)


def _components_of_frames(frames: tuple[Frame, ...], phase: str) -> Iterator[str | None]:
    """What each frame stands for. Wrappers count where the op stands in them directly."""
    script = frames[-1].file if frames else ""
    own_depth = next((i for i, f in enumerate(frames) if not is_library(f)), 0)
    for depth, frame in enumerate(frames):
        if "/optax/" in frame.file:
            yield "loss" if "/losses/" in frame.file else "optimizer"
        stem = PurePath(frame.file).stem
        is_moe_class = MOE_CONTEXT in map(component_of, frame.function.split("."))
        for part in [*reversed(frame.function.split(".")), stem if frame.file != script else ""]:
            component = component_of(part) if part != stem or _STEM.fullmatch(stem) else None
            if component == "dense_mlp" and is_moe_class:
                component = MOE_CONTEXT  # RoutedMoE.apply_ffn_activation
            is_wrapper = component in _ENCLOSING and depth > own_depth
            if not is_wrapper and (component != "optimizer" or phase == "other"):
                yield component


def _refined(program: Program, op: Op, component: str) -> str:
    """Experts' work that multiplies nothing is not a GEMM."""
    if component != "grouped_gemm" or op.opcode == "custom-call":
        return component
    return component if "dot" in program.opcodes(op) else "expert_elementwise"


def _by_parameter(program: Program, structure: Structure, op: Op, *, in_moe: bool) -> str | None:
    for dot in program.dots(op):
        for side in (dot.lhs, dot.rhs):
            weight = program.origin(side)
            words = re.findall(r"\w+", weight.op_name) if weight else []
            named = [component_of(word) for word in reversed(words)]
            if weight and weight.dims[-1:] != (structure.experts,):
                named = [component for component in named if component != "router"]
            component = innermost(named, in_moe=in_moe)
            if component not in (None, MOE_CONTEXT):
                return component
    return None


def _by_structure(
    program: Program, structure: Structure, op: Op, known: tuple[str, tuple[Frame, ...]]
) -> str | None:
    name, frames = known
    if is_top_k(op) and structure.moe:
        return "router"
    if is_expert_product(program, op, structure.experts):
        return "grouped_gemm"
    found = structure.component(program, op, frames)
    if found:
        return found
    if phase_of(name) == "other" and _updates_parameter(program, op):
        return "optimizer"
    return structure.by_vocabulary(program, op)


def _is_batched_product(program: Program, op: Op) -> bool:
    """In a MoE layer the batch is the experts: tokens go through the gate as one matrix."""
    is_library_call = op.target.startswith(_MATMUL_CALLS) and len(op.dims) > 2
    return is_library_call or any(dot.batched for dot in program.dots(op))


def _updates_parameter(program: Program, op: Op) -> bool:
    """An elementwise op whose result replaces a program parameter that it reads."""
    if program.opcodes(op) & {"dot", "gather", "scatter", *COLLECTIVES}:
        return False
    origins = [program.origin(name) for name in op.operands]
    return len(op.operands) > 1 and any(o is not None and o.dims == op.dims for o in origins)


def best_name(program: Program, op: Op) -> str:
    """The op's own name; of a fusion without one, that of its product, root or first named part."""
    if op.op_name and not program.opcodes(op) & {"dot"}:
        return op.op_name
    inside = program.interior(op)
    ranked = sorted(inside, key=lambda m: (m.opcode != "dot", not m.is_root))
    found = next((m.op_name for m in ranked if "/" in m.op_name), op.op_name)
    wrapper = program.ops.get(program.callers.get(op.computation, ""))
    is_wrapped = not found and wrapper is not None and wrapper.opcode == "async-start"
    return wrapper.op_name if is_wrapped and wrapper is not None else found


def best_frames(program: Program, op: Op) -> tuple[Frame, ...]:
    """The op's own frames, innermost first; of a fusion without them those of its first part."""
    return op.frames or next((m.frames for m in program.interior(op) if m.frames), ())
