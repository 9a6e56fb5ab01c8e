"""Question: which training steps does the closed form answer to? The cases of `memory_grid.py`.

Drawn from lists of values that published models use, by a generator with a fixed seed: the same
cases on every machine. Half of them, by a hash of the case, are for fitting counts of live tensors,
the other half are for testing and are never looked at when counts are chosen.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.parameters import parameters, partition
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import Strategy, expert_capacity, parse_strategy

STRATEGIES = (
    "dense-cf1.25",
    "sparse-ragged-dot",
    "sparse-gmm",
    "sparse-gmm-deepep",
    "dense-cf2",
    "dense-cf4",
)
SEED = 20
CASES = 456
_REMATS = (
    *("full",) * 5,
    *("none",) * 2,
    "save:out_proj",
    "save:query_proj,key_proj,value_proj,out_proj",
    "save:mlpwi_0,mlpwi_1,mlpwo",
    "save:mlpwo",
)
# A step near the limit of the device is compiled to that limit: its size tells of the limit.
_MOST_BYTES = 60e9


@dataclass(frozen=True)
class Case:
    """One step of the bundled model, in plain values."""

    strategy: str
    pdbs: int
    sequence: int
    data: int
    fsdp: int
    expert: int
    remat: str
    layers: int
    dense_layers: int
    hidden: int
    heads: int
    attention: str
    kv_heads: int
    experts: int
    top_k: int
    moe_ffn: int
    dense_ffn: int
    shared_experts: int
    vocab: int
    weight_dtype: str

    @property
    def key(self) -> str:
        """Hash of all values, hexadecimal."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]

    @property
    def split(self) -> str:
        """``fit`` where the hash is even, else ``test``."""
        return "test" if int(self.key, 16) % 2 else "fit"

    @property
    def model(self) -> ModelSpec:
        """The decoder; heads have DeepSeek-V3's dimensions (MLA) or 128 features (GQA)."""
        mla = MlaSpec(q_lora_rank=1536, kv_lora_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
        return ModelSpec(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            attention=mla if self.attention == "mla" else GqaSpec(self.kv_heads, 128),
            experts=self.experts,
            top_k=self.top_k,
            moe_ffn=self.moe_ffn,
            vocab=self.vocab,
            dense_layers=self.dense_layers,
            dense_ffn=self.dense_ffn if self.dense_layers else 0,
            shared_experts=self.shared_experts,
            compute_dtype="bfloat16",
            weight_dtype=self.weight_dtype,
        )

    @property
    def plan(self) -> ParallelPlan:
        """Degrees and rematerialisation."""
        return ParallelPlan(self.data, self.fsdp, self.expert, remat=Remat(self.remat))

    @property
    def options(self) -> dict[str, Any]:
        """What builders of the bundled model's programs are given."""
        return {
            "model": self.model,
            "plan": self.plan,
            "strategy": self.parsed_strategy,
            "sequence": self.sequence,
            "pdbs": self.pdbs,
        }

    @property
    def parsed_strategy(self) -> Strategy:
        """The strategy by its name."""
        return parse_strategy(self.strategy)


def cases() -> list[Case]:
    """All cases, the strategies in turn: the first six have one of each."""
    draw = random.Random(SEED)
    found: dict[str, Case] = {}
    while len(found) < CASES:
        strategy = STRATEGIES[len(found) % len(STRATEGIES)]
        case = next(c for c in _drawn(draw, strategy) if _is_possible(c) and c.key not in found)
        found[case.key] = case
    return list(found.values())


def received_rows(case: Case) -> int:
    """Rows of the buffer that an expert rank multiplies, the worst case that XLA has to allow for.

    Dense: capacity of each local expert for each sequence of the EP group. Ragged: `exchange`.
    DeepEP: every slot of every row of the group.
    """
    tokens, local = case.pdbs * case.sequence, case.experts // case.expert
    factor = case.parsed_strategy.capacity_factor
    if factor is not None:
        capacity = expert_capacity(case.sequence, case.top_k, case.experts, factor)
        return case.expert * local * case.pdbs * capacity
    if case.strategy == "sparse-gmm-deepep":
        return case.expert * tokens * case.top_k
    return case.expert * tokens * min(local, case.top_k)


def _drawn(draw: random.Random, strategy: str) -> Iterator[Case]:
    while True:
        hidden = draw.choice((1024, 1536, 2048, 2560, 3072, 4096, 5120, 7168))
        dense_layers = draw.choice((0, 0, 1, 2, 3))
        yield Case(
            strategy=strategy,
            pdbs=draw.choice((1, 1, 2, 3, 4, 8)),
            sequence=draw.choice((1024, 2048, 4096, 8192)),
            data=draw.choice((1, 1, 1, 2)),
            fsdp=draw.choice((1, 1, 2, 4, 8)),
            expert=draw.choice((2, 4, 8, 8, 16, 32, 64)),
            remat=draw.choice(_REMATS),
            layers=dense_layers + draw.choice((2, 3, 4, 6, 8, 12)),
            dense_layers=dense_layers,
            hidden=hidden,
            heads=draw.choice((hidden // 128, max(hidden // 256, 8))),
            attention=draw.choice(("gqa", "mla")),
            kv_heads=draw.choice((4, 8)) if hidden >= 2048 else 4,
            experts=draw.choice((16, 32, 64, 128, 160, 256)),
            top_k=draw.choice((2, 4, 6, 8)),
            moe_ffn=draw.choice((512, 768, 1024, 1408, 1536, 2048)),
            dense_ffn=draw.choice((2, 3)) * hidden,
            shared_experts=draw.choice((0, 1)),
            vocab=draw.choice((32000, 65536, 102400, 129280)),
            weight_dtype=draw.choice(("bfloat16", "float32")),
        )


def _is_possible(case: Case) -> bool:
    devices = case.data * case.fsdp * case.expert
    if case.experts % case.expert or case.heads % case.kv_heads or devices > 256:
        return False
    if devices > 8 and devices % 8:
        return False
    return _rough_bytes(case) < _MOST_BYTES


def _rough_bytes(case: Case) -> float:
    """An upper estimate, only to draw no case that no device could hold."""
    tokens, plan = case.pdbs * case.sequence, case.plan
    weight_bytes = 2 if case.weight_dtype == "bfloat16" else 4
    weights = 0.0
    for parameter in parameters(case.model):
        axes = tuple(axis for part in partition(parameter, plan) for axis in part)
        weights += parameter.size / plan.degree(axes)
    rows = received_rows(case)
    widest = max(case.hidden, case.moe_ffn)
    layer = 6 * rows * widest + 12 * tokens * case.heads * 128 + 10 * tokens * case.hidden
    if case.strategy == "sparse-ragged-dot":
        layer += 4 * rows * widest * (case.experts // case.expert)
    if case.strategy.startswith("dense"):
        layer += 6 * tokens * rows // case.pdbs // case.expert * case.expert // 4
    kept = case.layers if case.remat != "full" else 1
    return (
        weights * weight_bytes * 5
        + 2 * layer * (1 if case.remat == "full" else kept / 1.5)
        + 2 * tokens * case.hidden * case.layers
        + 10 * tokens * case.vocab
    )
