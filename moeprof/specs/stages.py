"""Question: which layers does each stage of a pipeline hold, and each of its chunks?

Chunks are counted in the order in which a token passes them: with p stages, chunk k of a pass lies
on stage k mod p and is that stage's chunk k div p (Narayanan et al. 2021, arXiv 2104.04473,
section 2.2). Schedules that go down the stages and back up (zbv, v-half, v-min) have the second
chunk of stage s at 2p − 1 − s, so that the first stage holds the embedding and the head.

A layout may be given in the notation of Megatron-LM's ``--pipeline-model-parallel-layout``, such as
``Et*3|(tt|)*29m|L``: E embedding, t transformer layer, m module of multi-token prediction, L head
and loss; ``|`` ends a chunk, ``*N`` repeats a letter or a group in parentheses, commas and blanks
mean nothing.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from moeprof.errors import SpecError
from moeprof.specs.model import ModelSpec
from moeprof.specs.parameters import Parameter, parameters
from moeprof.specs.schedule import stage_at


@dataclass(frozen=True)
class StageLayers:
    """What one chunk of one stage holds, or all chunks of a stage together.

    ``layers`` are indices into the model, ascending; ``dense_layers`` and ``moe_layers`` count them
    by feed-forward, ``linear_layers`` those with linear attention. The head comes with the final
    norm.
    """

    stage: int
    chunk: int
    layers: tuple[int, ...]
    dense_layers: int
    moe_layers: int
    linear_layers: int
    mtp_layers: int
    has_embedding: bool
    has_head: bool

    @property
    def softmax_layers(self) -> int:
        """Layers with a score per pair of positions; multi-token prediction is not counted."""
        return len(self.layers) - self.linear_layers


def even_split(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, as even as can be.

    What does not divide goes to the chunks after the first, one each: the first holds the
    embedding and most microbatches, the last holds the head.
    """
    each, left = divmod(layers, chunks)
    return tuple(each + (1 <= chunk <= left) for chunk in range(chunks))


def split_stages(
    model: ModelSpec,
    pipeline: int,
    virtual: int = 1,
    split: Sequence[int] | None = None,
    schedule: str = "1f1b",
) -> tuple[StageLayers, ...]:
    """The chunks of a pipeline, in the order in which a token passes them.

    Args:
        model: whose layers are split.
        pipeline: stages.
        virtual: chunks per stage.
        split: layers of each of the ``pipeline · virtual`` chunks; None: `even_split`. The first
            holds the embedding, the last the head and multi-token prediction.
        schedule: of `moeprof.specs.schedule`, which says on which stage a chunk is.

    Raises:
        SpecError: ``split`` has another length or another sum, or there are fewer layers than
            chunks and no split.
    """
    return _split(model, pipeline, virtual, None if split is None else tuple(split), schedule)


@functools.lru_cache(maxsize=1024)
def _split(
    model: ModelSpec, pipeline: int, virtual: int, split: tuple[int, ...] | None, schedule: str
) -> tuple[StageLayers, ...]:
    chunks = pipeline * virtual
    if split is None:
        if chunks > model.layers:
            raise SpecError(
                f"pipeline: {model.layers} layers are fewer than the {pipeline} × {virtual} = "
                f"{chunks} chunks. Lower pipeline or virtual, or give the layers of each chunk."
            )
        split = even_split(model.layers, chunks)
    if len(split) != chunks or sum(split) != model.layers or min(split) < 0:
        raise SpecError(
            f"pipeline split: expected {chunks} counts (pipeline {pipeline} × virtual {virtual}) "
            f"that add up to {model.layers} layers, found {len(split)} that add up to "
            f"{sum(split)}: {', '.join(map(str, split))}."
        )
    ends = itertools.accumulate(split)
    last = chunks - 1
    return tuple(
        _chunk(
            model,
            place=stage_at(schedule, pipeline, k),
            layers=tuple(range(end - count, end)),
            mtp_layers=model.mtp_layers if k == last else 0,
            ends=(k == 0, k == last),
        )
        for k, (end, count) in enumerate(zip(ends, split, strict=True))
    )


def stages_of_layout(
    model: ModelSpec, text: str, pipeline: int, virtual: int = 1, schedule: str = "1f1b"
) -> tuple[StageLayers, ...]:
    """The chunks that a layout such as ``Et*7|t*7mL`` describes; see `read_layout`.

    Raises:
        SpecError: the text is no layout, or it has not the model's layers, one embedding and one
            head, or another number of chunks than ``pipeline · virtual``.
    """
    chunks = read_layout(text)
    found = {
        "chunks": (len(chunks), pipeline * virtual),
        "t (layers)": (sum(c.layers for c in chunks), model.layers),
        "m (multi-token prediction)": (sum(c.mtp_layers for c in chunks), model.mtp_layers),
        "E (embedding)": (sum(c.embeddings for c in chunks), 1),
        "L (head)": (sum(c.heads for c in chunks), 1),
    }
    wrong = [f"{n} {what}, not {want}" for what, (n, want) in found.items() if n != want]
    if wrong:
        raise SpecError(f"pipeline layout {text!r}: it has {'; '.join(wrong)}.")
    ends = itertools.accumulate(c.layers for c in chunks)
    return tuple(
        _chunk(
            model,
            place=stage_at(schedule, pipeline, k),
            layers=tuple(range(end - c.layers, end)),
            mtp_layers=c.mtp_layers,
            ends=(bool(c.embeddings), bool(c.heads)),
        )
        for k, (end, c) in enumerate(zip(ends, chunks, strict=True))
    )


def whole_stages(chunks: Sequence[StageLayers]) -> tuple[StageLayers, ...]:
    """Each stage with all its chunks together, as chunk 0, by stage."""
    by_stage: dict[int, list[StageLayers]] = {}
    for chunk in chunks:
        by_stage.setdefault(chunk.stage, []).append(chunk)
    return tuple(_joined(stage, by_stage[stage]) for stage in sorted(by_stage))


@functools.lru_cache(maxsize=4096)
def stage_parameters(model: ModelSpec, stage: StageLayers) -> tuple[Parameter, ...]:
    """The weights of `parameters` that a stage holds, stacked over its own layers.

    A stage that needs the embedding or the head without being its owner holds a copy of it, under
    ``embedding_copy`` and ``head_copy``: the head where it is tied, and multi-token prediction.
    Without copies, all stages together hold what `parameters` lists.
    """
    stacks = {
        "dense_layers": stage.dense_layers,
        "moe_layers": stage.moe_layers,
        "mtp_layers": stage.mtp_layers,
    }
    linear = set(model.linear_layer_indices)
    with_experts = set(model.moe_layer_indices)
    linear_of = {
        "moe_layers": sum(n in linear and n in with_experts for n in stage.layers),
        "dense_layers": sum(n in linear and n not in with_experts for n in stage.layers),
        "mtp_layers": 0,
    }
    owned = {
        "embedding": stage.has_embedding,
        "head": stage.has_head,
        "final_norm": stage.has_head,
    }
    copied = _copied(model, stage)
    held: list[Parameter] = []
    for parameter in parameters(model):
        kind = parameter.path[0]
        if kind in stacks:
            count = stacks[kind]
            if parameter.path[1] == "linear":
                count = linear_of[kind]
            elif parameter.path[1] == "attention":
                count -= linear_of[kind]
            if count:
                held.append(replace(parameter, shape=(count, *parameter.shape[1:])))
        elif owned[kind]:
            held.append(parameter)
        elif kind in copied:
            held.append(replace(parameter, path=(f"{kind}_copy",)))
    return tuple(held)


def _copied(model: ModelSpec, stage: StageLayers) -> set[str]:
    reads_embedding = stage.mtp_layers > 0 or (model.tied_head and stage.has_head)
    return {
        kind
        for kind, is_read in (("embedding", reads_embedding), ("head", stage.mtp_layers > 0))
        if is_read
    }


def _chunk(
    model: ModelSpec,
    *,
    place: tuple[int, int],
    layers: tuple[int, ...],
    mtp_layers: int,
    ends: tuple[bool, bool],
) -> StageLayers:
    with_experts, linear = set(model.moe_layer_indices), set(model.linear_layer_indices)
    moe = sum(layer in with_experts for layer in layers)
    return StageLayers(
        stage=place[0],
        chunk=place[1],
        layers=layers,
        dense_layers=len(layers) - moe,
        moe_layers=moe,
        linear_layers=sum(layer in linear for layer in layers),
        mtp_layers=mtp_layers,
        has_embedding=ends[0],
        has_head=ends[1],
    )


def _joined(stage: int, chunks: Sequence[StageLayers]) -> StageLayers:
    return StageLayers(
        stage=stage,
        chunk=0,
        layers=tuple(sorted(layer for chunk in chunks for layer in chunk.layers)),
        dense_layers=sum(chunk.dense_layers for chunk in chunks),
        moe_layers=sum(chunk.moe_layers for chunk in chunks),
        linear_layers=sum(chunk.linear_layers for chunk in chunks),
        mtp_layers=sum(chunk.mtp_layers for chunk in chunks),
        has_embedding=any(chunk.has_embedding for chunk in chunks),
        has_head=any(chunk.has_head for chunk in chunks),
    )


# The notation of layouts.

MOST_LETTERS = 100_000
_LETTERS = "EtmL|"
_INNERMOST = re.compile(r"\(([^()]*)\)(?:\*(\d{1,6}))?")
_REPEATED = re.compile(rf"([{re.escape(_LETTERS)}])\*(\d{{1,6}})")


class ChunkLayout(NamedTuple):
    """How many of each letter one chunk holds."""

    embeddings: int
    layers: int
    mtp_layers: int
    heads: int


def read_layout(text: str) -> tuple[ChunkLayout, ...]:
    """The chunks of a layout, in the order in which a token passes them.

    Raises:
        SpecError: another letter, an unpaired parenthesis, a ``*`` without number or what to
            repeat, or more than `MOST_LETTERS` letters.
    """
    flat = "".join(text.replace(",", "").split())
    while True:
        opened, groups = _INNERMOST.subn(
            lambda group: _times(text, _plain(text, group[1]), group[2]), flat
        )
        if not groups:
            break
        flat = opened
    flat = _plain(text, flat)
    chunks = flat.split("|")
    return tuple(ChunkLayout(*(chunk.count(letter) for letter in "EtmL")) for chunk in chunks)


def _plain(text: str, part: str) -> str:
    """A part without parentheses, its repeated letters written out."""
    plain = _REPEATED.sub(lambda found: _times(text, found[1], found[2]), part)
    wrong = next((letter for letter in plain if letter not in _LETTERS), None)
    if wrong is not None:
        raise SpecError(
            f"pipeline layout {text!r}: expected E, t, m, L, |, (…) and *N, found {wrong!r}."
        )
    return plain


def _times(text: str, part: str, count: str | None) -> str:
    number = int(count or 1)
    if len(part) * number > MOST_LETTERS:
        raise SpecError(
            f"pipeline layout {text!r}: expected at most {MOST_LETTERS:,} letters, found more."
        )
    return part * number
