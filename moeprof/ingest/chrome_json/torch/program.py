"""Which op of PyTorch is each piece of device work of, and which program do these ops make?

An instruction of the program is one run of an op in a step: the op, what is around it, its inputs,
and how many of the same ran before it in that step. Its name follows from these, so that the same
op has the same name in every step, in the files of other ranks and in other runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from moeprof.hlo.instruction import Groups, Instruction, frames_text
from moeprof.hlo.program import STAND_IN
from moeprof.ingest.chrome_json.device_work import GLOO, DeviceWork
from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.chrome_json.processes import ON_DEVICE, graph_ids
from moeprof.ingest.chrome_json.torch.calls import Call, call_of, gloo_message
from moeprof.ingest.chrome_json.torch.contexts import (
    ANNOTATION,
    CPU_OP,
    FUNCTION,
    Context,
    Contexts,
    contexts_of,
)
from moeprof.ingest.chrome_json.torch.instructions import instruction, made
from moeprof.ingest.hlo.programs import Program
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.intervals import nesting
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


def own_stretches(gathered: Gathered, found: DeviceWork) -> DeviceWork:
    """Work of a CPU, each op in the stretches in which none that it calls runs.

    An op and what it calls are one thread's time, and they may copy while it computes. A collective
    is one call with all that it does.
    """
    found = _without_inner_work(gathered, found)
    work = found.work
    start, end = (work[name] for name in ("start_ns", "end_ns"))
    parent = nesting(work["line"], start, end).parent
    inner = np.flatnonzero(parent >= 0)
    inner = inner[np.lexsort((start[inner], parent[inner]))]
    around = parent[inner]
    stops = np.minimum(end[inner], end[around])
    is_first = np.append(True, around[1:] != around[:-1])[: len(inner)]
    begins = np.where(is_first, start[around], np.append(0, stops[:-1])[: len(inner)])
    last = start.copy()
    last[around] = stops  # in order of their start: the last one counts
    owner = np.concatenate([around, np.arange(len(work))])
    begin, until = np.concatenate([begins, last]), np.concatenate([start[inner], end])
    is_leaf = ~np.isin(np.arange(len(work)), around)
    keep = (until > begin) | np.concatenate([np.zeros(len(inner), bool), is_leaf])
    owner, begin, until = owner[keep], begin[keep], until[keep]
    order = np.argsort(begin, kind="stable")
    owner = owner[order]
    pieces = work[owner].assign(start_ns=begin[order], end_ns=until[order])
    return replace(found, work=pieces, places=found.places[owner], module=found.module[owner])


def _without_inner_work(gathered: Gathered, found: DeviceWork) -> DeviceWork:
    """Work but for what lies inside collectives of gloo."""
    texts, work = gathered.labels.texts, found.work
    named = work["name"]
    labels = [label for label in np.unique(named).tolist() if texts[label].startswith(GLOO)]
    if not labels:
        return found
    stamps = (work[name] for name in ("line", "start_ns", "end_ns"))
    parent, depth = nesting(*stamps)
    is_whole, is_inside = np.isin(named, labels), np.zeros(len(work), bool)
    for deep in range(1, int(depth.max(initial=0)) + 1):
        mine = np.flatnonzero(depth == deep)
        is_inside[mine] = is_inside[parent[mine]] | is_whole[parent[mine]]
    keep = np.flatnonzero(~is_inside)
    return replace(found, work=work[keep], places=found.places[keep], module=found.module[keep])


def _has(gathered: Gathered, categories: Sequence[str]) -> bool:
    category = gathered.column("category")
    return bool(np.isin(category, [gathered.labels.code(name) for name in categories]).any())


def torch_ops(
    gathered: Gathered,
    found: DeviceWork,
    runs: Int64s,
    keep: Flags,
    groups: Mapping[str, Groups],
) -> TorchOps:
    """Find the op of each piece, and make the program that they are instructions of.

    ``runs`` has the step's execution of each piece; ``keep`` the events that can be used;
    ``groups`` the ranks of process groups whose collectives do not list them all.
    """
    category = gathered.column("category")
    code = gathered.labels.code
    is_op = category == code(CPU_OP)
    is_call = (gathered.column("correlation") != NONE) & ~found.is_among(len(keep))
    is_around = np.isin(category, [code(name) for name in (CPU_OP, ANNOTATION, FUNCTION)])
    contexts = contexts_of(gathered, keep & (is_call | is_around))
    is_host = np.isin(found.places, contexts.places)  # work of a CPU
    launched = np.where(is_host, found.places, _launches(gathered, found, is_call))
    is_replayed = _is_replayed(gathered, found, launched)
    call = _calls(gathered, found, contexts, launched, keep & is_op)
    call[is_replayed] = -1
    units = _units(gathered, found, contexts, np.where(is_replayed, -1, launched), call, runs)
    labels, instructions = _named(gathered, contexts, units, groups)
    op = np.where(units.of >= 0, np.append(labels, 0)[units.of], 0)
    program = Program.known(PROGRAM, _ENTRY, instructions, is_of_calls=True)
    return TorchOps(program, op, tuple(_checks(gathered, contexts, is_op, len(instructions))))


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
    return np.where((ids[calls][at] == mine) & (mine > 0), calls[at], -1)


def _calls(
    gathered: Gathered, found: DeviceWork, contexts: Contexts, launched: Int64s, is_op: Flags
) -> Int64s:
    """The op of each piece: that of its external id, else the one that its launch lies in."""
    external = gathered.column("external")
    ops = np.flatnonzero(is_op & (external != NONE))
    ops = ops[np.argsort(external[ops], kind="stable")]
    call = np.full(len(found.places), -1, np.int64)
    is_launched = launched >= 0
    call[is_launched] = contexts.op[np.searchsorted(contexts.places, launched[is_launched])]
    if len(ops):
        own = external[found.places]
        told = np.where((own == NONE) & is_launched, external[launched], own)
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
    node = graph_ids(gathered, "graph_node")[found.places]
    is_replayed: Flags = np.isin(named, graphs) | (node != NONE)
    return is_replayed


class _Units(NamedTuple):
    """Runs of ops, and kernels that were launched outside of any; an entry each, but for the last.

    ``context`` is what is around it, ``event`` the label of its name, ``inputs`` labels of what it
    says of itself, ``is_bare`` whether it is a kernel. ``of`` has the unit of each piece of work,
    -1 for none.
    """

    context: Int64s
    event: Int64s
    inputs: Int64s
    is_bare: Flags
    start_ns: Int64s
    run: Int64s
    device: Int64s
    of: Int64s


_INPUTS = ("dims", "types", "values", "collective")


def _units(
    gathered: Gathered,
    found: DeviceWork,
    contexts: Contexts,
    launched: Int64s,
    call: Int64s,
    runs: Int64s,
) -> _Units:
    """The unit of each piece: the run of its op, else itself where something is around its launch.

    Of copies by the driver the launch says nothing.
    """
    bare = np.flatnonzero((call < 0) & (launched >= 0))
    around = contexts.of[np.searchsorted(contexts.places, launched[bare])]
    named = gathered.column("event")[found.places[bare]]
    texts = gathered.labels.texts
    copies = [label for label in np.unique(named).tolist() if is_driver_copy(texts[label])]
    says = np.array([bool(one.scopes or one.frames) for one in contexts.contexts], bool)
    is_host = found.places[bare] == launched[bare]
    bare = bare[(is_host | says[around]) & ~np.isin(named, copies)]
    pieces = np.flatnonzero(call >= 0)
    places, first, which = np.unique(call[pieces], return_index=True, return_inverse=True)
    of = np.full(len(call), -1, np.int64)
    of[pieces] = which.ravel()
    of[bare] = len(places) + np.arange(len(bare))
    events = np.concatenate([places, found.places[bare]])
    spans = np.concatenate([places, launched[bare]])
    return _Units(
        context=contexts.of[np.searchsorted(contexts.places, spans)],
        event=gathered.column("event")[events],
        inputs=_inputs(gathered, events),
        is_bare=np.arange(len(events)) >= len(places),
        start_ns=gathered.column("start_ns")[spans],
        run=np.concatenate([runs[pieces][first], runs[bare]]),
        device=found.work["device"][np.concatenate([pieces[first], bare])],
        of=of,
    )


def _inputs(gathered: Gathered, places: Int64s) -> Int64s:
    """What events say of their inputs, [events, inputs]; 0 where they say nothing."""
    calls = gathered.calls()
    known = np.append(calls["place"], -2)  # in order, but for the last, which is none
    at = np.searchsorted(known[:-1], places)
    is_told = known[np.minimum(at, len(known) - 1)] == places
    columns = (np.append(calls[name], 0) for name in _INPUTS)
    return np.stack([np.where(is_told, c[np.minimum(at, len(c) - 1)], 0) for c in columns], axis=1)


def _named(
    gathered: Gathered, contexts: Contexts, units: _Units, groups: Mapping[str, Groups]
) -> tuple[Int64s, list[Instruction]]:
    """The label of the instruction of each unit, and the instructions, inputs included."""
    columns = [units.context, units.event, units.is_bare.astype(np.int64), *units.inputs.T]
    kinds, kind = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    kind = kind.ravel()
    texts = gathered.labels.texts
    calls, stems = [], []
    for number, event, is_bare, *inputs in kinds.tolist():
        context = contexts.contexts[number]
        call = call_of(texts[event], *(texts[label] for label in inputs))
        if is_bare:
            call = replace(call, message=call.message or gloo_message(call.name))
            context = replace(context, scopes=(*context.scopes, "kernel"))
        if call.message is not None:
            call = replace(call, groups=groups.get(str(call.message.get("Process Group Name")), ()))
        calls.append((call, context))
        stems.append(_stem_of(call, context, [texts[label] for label in inputs[:2]]))
    numbers = {stem: number for number, stem in enumerate(dict.fromkeys(stems))}
    group = np.array([numbers[stem] for stem in stems], np.int64)[kind]
    devices = int(units.device.max(initial=0)) + 1
    turns = _turns(group * devices + units.device, units.run, units.start_ns)
    places = _turns(units.device, units.run, units.start_ns)
    made_: dict[str, Instruction] = {}
    names = []
    for k, turn, place in zip(kind.tolist(), turns.tolist(), places.tolist(), strict=True):
        names.append(f"{stems[k]}.{turn}" if turn else stems[k])
        if names[-1] not in made_:
            _add(made_, names[-1], *calls[k], place)
        elif calls[k][0].message is not None:
            made_[names[-1]] = made_[names[-1]].of_either(made(calls[k][0]).result)
    labels = np.array([gathered.labels.code(name) for name in names], np.int64)
    return labels, [*made_.values()]


_GROUP = (
    *("Collective name", "Process Group Name", "Process Group Ranks", "Group size"),
    *("Global rank start", "Global rank stride"),
)
"""What tells a group's collective. How much each rank sends differs by rank and step."""


def _stem_of(call: Call, context: Context, inputs: Sequence[str]) -> str:
    """The beginning of a call's name, which follows from all that is the same wherever it runs."""
    parts = [call.name, context.path, frames_text(context.frames)]
    if call.message is None:
        parts += inputs
    else:
        parts += [str(call.message.get(key, "")) for key in _GROUP]
    digest = int.from_bytes(hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest())
    letters = []
    for _ in range(_LETTERS):
        digest, rest = divmod(digest, len(_DIGITS))
        letters.append(_DIGITS[rest])
    name = made(call).opcode if call.message is not None else call.name.rpartition("::")[2]
    plain = name.strip("_") or "op"
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


def _add(
    instructions: dict[str, Instruction], name: str, call: Call, context: Context, place: int
) -> None:
    """Add an instruction, the call of that place in a step, and what stands for its inputs."""
    one, seen = made(call), Counter[str]()
    operands = []
    for shape in one.operands:
        text = shape.text or "list"
        operands.append(f"{text}.{seen[text]}" if seen[text] else text)  # each is read by itself
        seen[text] += 1
        if operands[-1] not in instructions:
            instructions[operands[-1]] = Instruction(
                operands[-1], STAND_IN, shape, size_bytes=shape.size_bytes, computation=_ENTRY
            )
    instructions[name] = instruction(
        one,
        name,
        operands,
        computation=_ENTRY,
        op_name=context.path,
        frames=context.frames,
        id=len(instructions),
        schedule=place,
    )
