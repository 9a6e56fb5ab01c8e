"""What names tell of an op: scopes of its op_name, and functions, classes and files of its lines.

A name is believed unless the values under it flow otherwise: a function called "route" that holds
the whole layer is no router. Names that mean several things in a model ("gate") are believed where
nothing speaks against them.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from moeprof.analyzers.classify.names import (
    MOE_CONTEXT,
    component_of,
    innermost,
    is_file_of_part,
    is_vague,
    scopes,
)
from moeprof.analyzers.classify.roles import Roles
from moeprof.analyzers.classify.sites import SHOWING, weight_of
from moeprof.hlo.program import Frame, Op, Program

_LIBRARY = re.compile(
    r"(site|dist)-packages/(jax|jaxlib|flax|optax|haiku|equinox|chex|numpy|absl|orbax|qwix)/|"
    r"(^|/)moeprof/(recording|capture)/|^<"
)
"""Files that no model is written in: frameworks, what calls it while it is captured, and what
Python names ``<frozen runpy>``. The recorder stood in `capture` when older runs were made."""
ENCLOSING = frozenset({"loss", "optimizer"})
"""Functions of these names often wrap everything."""
_COMPILED = re.compile(r"jit\((\w+)")
_GROUPS = {
    **dict.fromkeys(("grouped_gemm", "expert_elementwise"), "experts"),
    **dict.fromkeys(("router", "permute", "unpermute", "dispatch", "combine"), "routing"),
    **dict.fromkeys(("dense_mlp", "shared_expert"), "mlp"),
    "attention": "attention",
    "head": "head",
    "norm": "norm",
}
"""Parts that a name may tell apart from each other. Flow calls "mlp" what it knows little of."""
_BY_FLOW = frozenset({"anchor", "target", "flow"})
Key = tuple[str, ...]
"""A name: what it is of (scope, function, file), and which one."""


class Told:
    """What names of one program tell, as far as the flow of its values bears them out."""

    def __init__(self, roles: Roles) -> None:
        """Count what flow tells of the forward ops under each name."""
        self._parts: dict[Key, Counter[str]] = defaultdict(Counter)
        self._scopes: dict[tuple[str, tuple[Frame, ...]], str | None] = {}
        self._frames: dict[tuple[tuple[Frame, ...], str, bool], str | None] = {}
        facts = roles.facts
        together: dict[tuple[tuple[Frame, ...], str], Counter[str]] = defaultdict(Counter)
        for op, role, is_forward in zip(facts.values.ops, roles.of, facts.is_forward, strict=True):
            group = _GROUPS.get(role.component) if role and role.how in _BY_FLOW else None
            if group is not None and role is not None and is_forward and op.opcode not in SHOWING:
                together[op.frames, op.op_name][group] += weight_of(op, role)
        for (frames, name), counts in together.items():
            for key in {*_keys_of_frames(frames), *_keys_of_scopes(name)}:
                self._parts[key].update(counts)

    def by_scopes(self, name: str, frames: tuple[Frame, ...]) -> str | None:
        """The innermost scope that stands for something; of merged paths the first definite."""
        key = (name, frames)
        if key not in self._scopes:
            paths = _own_scopes(name, frames)
            self._scopes[key] = _first_definite([self._of_path(path) for path in paths])
        return self._scopes[key]

    def by_frames(self, frames: tuple[Frame, ...], phase: str, *, in_moe: bool) -> str | None:
        """The same for functions, classes and files."""
        key = (frames, phase, in_moe)
        if key not in self._frames:
            self._frames[key] = innermost(self._of_frames(frames, phase), in_moe=in_moe)
        return self._frames[key]

    def _of_path(self, path: list[str]) -> str | None:
        known = [component_of(scope) for scope in path]
        in_moe = MOE_CONTEXT in known
        for end, (scope, component) in enumerate(zip(path, known, strict=True), 1):
            if component not in (None, MOE_CONTEXT) and not (in_moe and is_vague(scope)):
                is_borne_out = self._bears_out(("scope", *path[:end]), component, scope)
                known[end - 1] = component if is_borne_out else None
        return innermost(reversed(known))

    def _of_frames(self, frames: tuple[Frame, ...], phase: str) -> Iterator[str | None]:
        """What each frame stands for. Wrappers count where the op stands in them directly."""
        script = frames[-1].file if frames else ""
        own_depth = next((i for i, f in enumerate(frames) if not is_library(f)), 0)
        for depth, frame in enumerate(frames):
            if "/optax/" in frame.file:
                yield "loss" if "/losses/" in frame.file else "optimizer"
            stem = PurePath(frame.file).stem
            is_moe_class = MOE_CONTEXT in map(component_of, frame.function.split("."))
            functions = reversed(frame.function.split("."))
            for part in (*functions, stem if frame.file != script else ""):
                is_stem = part == stem
                component = component_of(part) if not is_stem or is_file_of_part(stem) else None
                if component == "dense_mlp" and is_moe_class:
                    component = MOE_CONTEXT  # RoutedMoE.apply_ffn_activation
                key = ("file", frame.file) if is_stem else ("function", frame.file, frame.function)
                is_definite = component not in (None, MOE_CONTEXT)
                if is_definite and not self._bears_out(key, component, part):
                    component = None
                is_wrapper = component in ENCLOSING and depth > own_depth
                if not is_wrapper and (component != "optimizer" or phase == "other"):
                    yield component

    def _bears_out(self, key: Key, component: str | None, name: str) -> bool:
        """Whether most of what lies under `name` is of the group that it names, if any is known.

        A feed-forward layer is what flow calls what it knows little of: that speaks against a name
        of several meanings alone.
        """
        counts, group = self._parts.get(key), _GROUPS.get(str(component))
        if not counts or group is None:
            return True
        against = sum(n for other, n in counts.items() if other not in (group, "mlp"))
        return counts[group] >= against + (
            counts["mlp"] if is_vague(name) and group != "mlp" else 0
        )


def _keys_of_frames(frames: tuple[Frame, ...]) -> Iterator[Key]:
    for frame in frames:
        yield ("function", frame.file, frame.function)
        yield ("file", frame.file)


def _keys_of_scopes(op_name: str) -> Iterator[Key]:
    for path in scopes(op_name):
        for end, scope in enumerate(path, 1):
            if component_of(scope) not in (None, MOE_CONTEXT):
                yield ("scope", *path[:end])


def is_library(frame: Frame) -> bool:
    """Whether a line is of a library: no model is written there."""
    return _is_of_library(frame.file)


@functools.lru_cache(maxsize=1 << 12)
def _is_of_library(file: str) -> bool:
    return _LIBRARY.search(file) is not None


@functools.lru_cache(maxsize=1 << 13)
def source_of(frames: tuple[Frame, ...]) -> str:
    """Innermost line that is not a library's, as ``file:line``; else the innermost."""
    own = [frame for frame in frames if not is_library(frame)] or list(frames[:1])
    return f"{own[0].file}:{own[0].line}" if own else ""


def by_scopes(paths: Iterable[list[str]]) -> str | None:
    """The innermost scope that stands for something, whatever flows there."""
    return _first_definite([innermost(map(component_of, reversed(path))) for path in paths])


def _first_definite(found: Sequence[str | None]) -> str | None:
    """Of merged paths the first that stands for a component, else whether one says "MoE layer"."""
    definite = (component for component in found if component not in (None, MOE_CONTEXT))
    return next(definite, MOE_CONTEXT if MOE_CONTEXT in found else None)


def _own_scopes(name: str, frames: tuple[Frame, ...]) -> list[list[str]]:
    """Scopes without the names of a library's own compiled functions, as of ``jnp.linalg.norm``."""
    compiled = set(_COMPILED.findall(name))
    own = {part for f in frames if not is_library(f) for part in f.function.split(".")}
    left_out = compiled - own if frames else set()
    return [[scope for scope in path if scope not in left_out] for path in scopes(name)]


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
