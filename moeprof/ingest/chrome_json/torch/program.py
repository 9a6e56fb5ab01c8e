"""Which op of PyTorch is each piece of device work of, and which program do these ops make?

An instruction of the program is one run of an op in a step: the op, what is around it, its inputs,
and how many of the same ran before it in that step. Its name follows from these, so that the same
op has the same name in every step, in the files of other ranks and in other runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.hlo.instruction import Instruction, frames_text
from moeprof.hlo.program import STAND_IN
from moeprof.ingest.chrome_json.device_work import DeviceWork
from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.chrome_json.processes import ON_DEVICE
from moeprof.ingest.chrome_json.torch.contexts import (
    ANNOTATION,
    CPU_OP,
    FUNCTION,
    Context,
    Contexts,
    contexts_of,
)
from moeprof.ingest.chrome_json.torch.instructions import (
    Call,
    call_of,
    gloo_message,
    instruction,
    made,
)
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.law import Law
from moeprof.units import format_count
from moeprof.vocabulary import is_driver_copy

PROGRAM = "PyTorch"
_ENTRY = "calls"
_MOST_TOLD = 0.9
"""Share of backward nodes with a forward op: below it much of the backward pass is unnamed."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LETTERS = 7  # 36**7 names: among 50,000 two are alike once in 60 programs


@dataclass(frozen=True)
class TorchOps:
    """The program of all calls, and the label of the instruction of each piece of work; 0: none.

    ``checks`` say how far the host's record tells them.
    """

    program: Program
    op: Int64s
    checks: tuple[Law, ...]


def is_torch(gathered: Gathered) -> bool:
    """Whether the trace has ops of PyTorch's dispatcher, or modules and functions."""
    return _has(gathered, (CPU_OP, FUNCTION))


def is_of_kineto(gathered: Gathered) -> bool:
    """Whether a GPU's work is in it as PyTorch's profiler writes it, ops or not."""
    return _has(gathered, ON_DEVICE)


def _has(gathered: Gathered, categories: Sequence[str]) -> bool:
    category = gathered.column("category")
    return bool(np.isin(category, [gathered.labels.code(name) for name in categories]).any())


def torch_ops(gathered: Gathered, found: DeviceWork, runs: Int64s, keep: Flags) -> TorchOps:
    """Find the op of each piece, and make the program that they are instructions of.

    ``runs`` has the step's execution of each piece; ``keep`` the events that can be used.
    """
    category = gathered.column("category")
    code = gathered.labels.code
    is_work = np.zeros(len(keep), bool)
    is_work[found.places] = True
    is_op = category == code(CPU_OP)
    is_call = (gathered.column("correlation") != NONE) & ~is_work
    is_around = np.isin(category, [code(name) for name in (CPU_OP, ANNOTATION, FUNCTION)])
    contexts = contexts_of(gathered, keep & (is_call | is_around))
    is_host = np.isin(found.places, contexts.places)  # work of a CPU
    launched = np.where(is_host, found.places, _launches(gathered, found, is_call))
    call = _calls(gathered, found, contexts, launched, keep & is_op)
    pieces = np.flatnonzero(call >= 0)
    label = np.zeros(len(found.places), np.int64)
    instructions: dict[str, Instruction] = {}
    _add_ops(gathered, contexts, call[pieces], runs[pieces], instructions, label, pieces)
    bare = np.flatnonzero((call < 0) & (launched >= 0) & ~_is_replayed(gathered, found, launched))
    _add_bare(gathered, found, contexts, launched, runs, instructions, label, bare)
    program = Program.known(PROGRAM, _ENTRY, [*instructions.values()], is_of_calls=True)
    return TorchOps(program, label, tuple(_checks(gathered, contexts, is_op, len(instructions))))


def _checks(
    gathered: Gathered, contexts: Contexts, is_op: Flags, instructions: int
) -> Iterator[Law]:
    """How far the host's record tells which op is what."""
    calls = gathered.calls()
    has_shapes = bool(calls["dims"].any())
    has_stacks = bool((gathered.column("category") == gathered.labels.code(FUNCTION)).any())
    lacking = [
        text
        for text, is_there in (
            ("shapes, so no FLOPs and bytes (record_shapes=True)", has_shapes),
            ("modules and lines (with_stack=True)", has_stacks),
        )
        if not is_there
    ]
    told = (
        f"no compiled program: {format_count(int(is_op.sum()))} op(s) of PyTorch's dispatcher "
        f"stand for one, with {format_count(instructions)} instruction(s); memory is not known"
    )
    without = f"; the profiler was not asked for {' nor for '.join(lacking)}" if lacking else ""
    yield Law("programs", "warn" if lacking else "ok", told + without)
    if contexts.nodes:
        share = contexts.told / contexts.nodes
        yield Law(
            "forward_ops",
            "ok" if share >= _MOST_TOLD else "warn",
            f"{format_count(contexts.told)} of {format_count(contexts.nodes)} backward node(s) "
            "have their forward op in the trace, by autograd's number: others stand in no module",
            expected=contexts.nodes,
            found=contexts.told,
        )


def _launches(gathered: Gathered, found: DeviceWork, is_call: Flags) -> Int64s:
    """The call of the host that launched each piece, by its id; -1 where it is not there."""
    ids = gathered.column("correlation")
    calls = np.flatnonzero(is_call)
    calls = calls[np.argsort(ids[calls], kind="stable")]
    if not len(calls):
        return np.full(len(found.places), -1, np.int64)
    mine = ids[found.places]
    at = np.minimum(np.searchsorted(ids[calls], mine), len(calls) - 1)
    return np.where((ids[calls][at] == mine) & (mine != NONE), calls[at], -1)


def _calls(
    gathered: Gathered, found: DeviceWork, contexts: Contexts, launched: Int64s, is_op: Flags
) -> Int64s:
    """The op of each piece: that of its external id, else the one that its launch lies in."""
    external = gathered.column("external")
    ops = np.flatnonzero(is_op & (external != NONE))
    ops = ops[np.argsort(external[ops], kind="stable")]
    call = np.full(len(found.places), -1, np.int64)
    at = np.searchsorted(contexts.places, np.maximum(launched, 0))
    inside = contexts.op[np.minimum(at, len(contexts.op) - 1)]
    call = np.where(launched >= 0, inside, -1)
    if len(ops):
        own = external[found.places]
        told = np.where(own != NONE, own, np.where(launched >= 0, external[launched], NONE))
        place = np.minimum(np.searchsorted(external[ops], told), len(ops) - 1)
        is_its = (external[ops][place] == told) & (told != NONE)
        nodes = contexts.op[np.searchsorted(contexts.places, ops[place])]
        call = np.where(is_its & (nodes >= 0), nodes, call)
    return call


def _is_replayed(gathered: Gathered, found: DeviceWork, launched: Int64s) -> Flags:
    """Pieces of a graph: one call launches them all, and says nothing of any."""
    texts = gathered.labels.texts
    named = gathered.column("event")[np.maximum(launched, 0)]
    graphs = [label for label in np.unique(named).tolist() if "GraphLaunch" in texts[label]]
    node = gathered.column("graph_node")[found.places]
    found_: Flags = np.isin(named, graphs) | (node != NONE)
    return found_


def _add_ops(
    gathered: Gathered,
    contexts: Contexts,
    call: Int64s,
    runs: Int64s,
    instructions: dict[str, Instruction],
    label: Int64s,
    pieces: Int64s,
) -> None:
    """Add an instruction for each run of an op, and put its label to its pieces."""
    places, first, which = np.unique(call, return_index=True, return_inverse=True)
    told = {name: np.zeros(len(places), np.int64) for name in _INPUTS}
    columns = gathered.calls()
    at = np.searchsorted(columns["place"], places)
    is_told = (at < len(columns["place"])) & (
        columns["place"][np.minimum(at, len(columns["place"]) - 1)] == places
        if len(at) and len(columns["place"])
        else False
    )
    for name in _INPUTS:
        told[name][is_told] = columns[name][at[is_told]]
    context = contexts.of[np.searchsorted(contexts.places, places)]
    event = gathered.column("event")[places]
    keys = np.stack([context, event, *(told[name] for name in _INPUTS)], axis=1)
    kinds, kind = np.unique(keys, axis=0, return_inverse=True)
    start = gathered.column("start_ns")[places]
    texts = gathered.labels.texts
    stems, cores = _cores(contexts.contexts, texts, kinds)
    groups = {stem: n for n, stem in enumerate(dict.fromkeys(stems))}
    group = np.array([groups[stem] for stem in stems], np.int64)[kind.ravel()]
    turn = _turns(group, runs[first], start)
    names = [
        f"{stems[k]}.{n}" if n else stems[k]
        for k, n in zip(kind.ravel().tolist(), turn.tolist(), strict=True)
    ]
    for name, k in zip(names, kind.ravel().tolist(), strict=True):
        if name not in instructions:
            _add(instructions, name, *cores[k])
    codes = np.array([gathered.labels.code(name) for name in names], np.int64)
    label[pieces] = codes[which.ravel()]


_INPUTS = ("dims", "types", "values", "collective")


def _cores(
    contexts: Sequence[Context], texts: Sequence[str], kinds: np.ndarray
) -> tuple[list[str], list[tuple[Call, Context]]]:
    """The beginning of the name of each kind of call, the call, and what is around it."""
    stems, cores = [], []
    for context_number, event, *inputs in kinds.tolist():
        context = contexts[context_number]
        call = call_of(texts[event], *(texts[label] for label in inputs))
        cores.append((call, context))
        stems.append(_stem_of(call, context, [texts[label] for label in inputs[:2]]))
    return stems, cores


def _stem_of(call: Call, context: Context, inputs: Sequence[str]) -> str:
    """The beginning of a call's name. A collective is that of its group, whatever each rank sends:
    all ranks of a group make the same calls in the same order.
    """
    if call.message is not None:
        group = call.message.get("Process Group Name", "")
        return f"{made(call).opcode}.{group}".rstrip(".")
    return _stem(call.name, (context.path, frames_text(context.frames), *inputs))


def _stem(name: str, parts: Sequence[str]) -> str:
    """A name that follows from the parts: ``mm.k3x9a2q``."""
    digest = int.from_bytes(hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest())
    letters = []
    for _ in range(_LETTERS):
        digest, rest = divmod(digest, len(_DIGITS))
        letters.append(_DIGITS[rest])
    plain = name.rpartition("::")[2].strip("_") or "op"
    return f"{'_'.join(plain.split())[:60]}.{''.join(letters)}"


def _turns(group: Int64s, run: Int64s, start_ns: Int64s) -> Int64s:
    """How many of the same group and run began before each."""
    order = np.lexsort((start_ns, run, group))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (group[order][1:] != group[order][:-1]) | (run[order][1:] != run[order][:-1])
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - firsts
    return turn


def _add(instructions: dict[str, Instruction], name: str, call: Call, context: Context) -> None:
    """Add an instruction, and what stands for its inputs."""
    one = made(call)
    for shape in one.operands:
        text = shape.text or "list"
        if text not in instructions:
            instructions[text] = Instruction(
                text, STAND_IN, shape, size_bytes=shape.size_bytes, computation=_ENTRY
            )
    instructions[name] = instruction(
        one,
        name,
        [shape.text or "list" for shape in one.operands],
        computation=_ENTRY,
        op_name=context.path,
        frames=context.frames,
        id=len(instructions),
    )


def _add_bare(
    gathered: Gathered,
    found: DeviceWork,
    contexts: Contexts,
    launched: Int64s,
    runs: Int64s,
    instructions: dict[str, Instruction],
    label: Int64s,
    bare: Int64s,
) -> None:
    """Add kernels that a library launched outside of any op: they are what their names say."""
    texts = gathered.labels.texts
    context = contexts.of[np.searchsorted(contexts.places, launched[bare])]
    named = gathered.column("event")[found.places[bare]]
    start = gathered.column("start_ns")[launched[bare]]
    keys, kind = np.unique(np.stack([context, named], axis=1), axis=0, return_inverse=True)
    turn = _turns(kind.ravel(), runs[bare], start)
    stems = []
    calls = [Call(texts[event], message=gloo_message(texts[event])) for _, event in keys.tolist()]
    for call, number in zip(calls, keys[:, 0].tolist(), strict=True):
        stems.append(_stem_of(call, contexts.contexts[number], (call.name,)))
    for at, k, n in zip(bare.tolist(), kind.ravel().tolist(), turn.tolist(), strict=True):
        number, event = keys[k].tolist()
        around = contexts.contexts[number]
        is_kernel = found.places[at] != launched[at]
        is_bare = is_kernel and not around.scopes and not around.frames
        if is_bare or is_driver_copy(texts[event]):
            continue
        name = f"{stems[k]}.{n}" if n else stems[k]
        if name not in instructions:
            inner = Context(around.phase, (*around.scopes, "kernel"), around.frames)
            _add(instructions, name, calls[k], inner)
        label[at] = gathered.labels.code(name)
