"""Question: which steps of MaxText 0.2.5 does the closed form answer to? Cases of the grid.

Fixed before any count was chosen by them: five sizes for each strategy and plan of 8 devices, drawn
by a generator with a fixed seed, four with remat_policy full and one with minimal. By a hash of the
case some are for reading and fitting counts (``fit``), the others are held out (``test``).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from moeprof.projector.setting import Precision, Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

STRATEGIES = ("dense-cf1.25", "dense-cf4", "sparse-ragged-dot")
PLANS = ((1, 8), (8, 1), (2, 4))  # FSDP, EP
SIZES = 5
SEED = 21
SEED_LATER = 22
DEVICES = 8
WIDE = (8, 8)
HARDWARE = "h100_sxm"
# Far from the limit of the device, near which XLA reorders and recomputes.
_MOST_BYTES = 40e9
_MLA = MlaSpec(q_lora_rank=768, kv_lora_rank=512, nope_dim=128, rope_dim=64, value_dim=128)


@dataclass(frozen=True)
class Case:
    """One step, in plain values; ``block`` is MaxText's decoder_block."""

    strategy: str
    fsdp: int
    expert: int
    remat: str
    block: str
    layers: int
    dense_layers: int
    hidden: int
    experts: int
    top_k: int
    moe_ffn: int
    vocab: int
    sequence: int
    pdbs: int
    weight_dtype: str

    @property
    def key(self) -> str:
        """Hash of all values, hexadecimal."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]

    @property
    def devices(self) -> int:
        """Devices of the plan."""
        return self.fsdp * self.expert

    @property
    def options(self) -> list[str]:
        """The words of MaxText's command line."""
        heads = self.hidden // 128
        said: dict[str, object] = {
            "decoder_block": self.block,
            "base_emb_dim": self.hidden,
            "base_num_query_heads": heads,
            "base_num_kv_heads": self._kv_heads,
            "head_dim": 128,
            # MaxText asks for one width where no layer is dense.
            "base_mlp_dim": 2 * self.hidden if self.dense_layers else self.moe_ffn,
            "base_moe_mlp_dim": self.moe_ffn,
            "base_num_decoder_layers": self.layers,
            "vocab_size": self.vocab,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "dtype": "bfloat16",
            "weight_dtype": self.weight_dtype,
            "remat_policy": self.remat,
            "max_target_length": self.sequence,
            "per_device_batch_size": self.pdbs,
            "ici_fsdp_parallelism": self.fsdp,
            "ici_expert_parallelism": self.expert,
        }
        if self.block == "deepseek":
            said |= {
                "first_num_dense_layers": self.dense_layers,
                "shared_experts": 1,
                "attention_type": "mla",
                "q_lora_rank": _MLA.q_lora_rank,
                "kv_lora_rank": _MLA.kv_lora_rank,
                "qk_nope_head_dim": _MLA.nope_dim,
                "qk_rope_head_dim": _MLA.rope_dim,
                "v_head_dim": _MLA.value_dim,
            }
        if self.strategy.startswith("dense"):
            said |= {"sparse_matmul": False, "capacity_factor": self.strategy[8:]}
        else:
            said |= {"sparse_matmul": True}
        return [f"{name}={value}" for name, value in said.items()]

    @property
    def setting(self) -> Setting:
        """The same run for the closed form."""
        is_mla = self.block == "deepseek"
        model = ModelSpec(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.hidden // 128,
            attention=_MLA if is_mla else GqaSpec(self._kv_heads, 128),
            experts=self.experts,
            top_k=self.top_k,
            moe_ffn=self.moe_ffn,
            vocab=self.vocab,
            dense_layers=self.dense_layers,
            dense_ffn=2 * self.hidden if self.dense_layers else 0,
            shared_experts=int(is_mla),
            compute_dtype="bfloat16",
            weight_dtype=self.weight_dtype,
        )
        kept = dict.fromkeys(
            ("weights", "first_moment", "second_moment", "gradients"), self.weight_dtype
        )
        return Setting(
            model,
            ParallelPlan(fsdp=self.fsdp, expert=self.expert, remat=Remat(self.remat)),
            parse_strategy(self.strategy),
            load_hardware(HARDWARE),
            sequence=self.sequence,
            pdbs=self.pdbs,
            precision=Precision(**kept),
        )

    @property
    def _kv_heads(self) -> int:
        heads = self.hidden // 128
        return heads if self.block == "deepseek" else heads // 4


def cases() -> list[Case]:
    """All cases, size by size: the first nine have one of each strategy and plan."""
    draw = random.Random(SEED)
    return [
        next(
            case for case in _drawn(draw, strategy, plan, size) if _rough_bytes(case) < _MOST_BYTES
        )
        for size in range(SIZES)
        for strategy in STRATEGIES
        for plan in PLANS
    ]


def later_cases() -> list[Case]:
    """Nine more, one of each strategy and plan, drawn and compiled when the counts were final."""
    draw = random.Random(SEED_LATER)
    return [
        next(c for c in _drawn(draw, strategy, plan, 0) if _rough_bytes(c) < _MOST_BYTES)
        for strategy in STRATEGIES
        for plan in PLANS
    ]


def by_split() -> dict[str, list[Case]]:
    """All cases by what they are for.

    ``fit``, of an even hash: counts were read from these. ``test``: the others of the grid, held
    out. ``later``: held out until the counts were final. ``wide``: on several hosts, read too.
    """
    found: dict[str, list[Case]] = {
        "fit": [],
        "test": [],
        "later": later_cases(),
        "wide": wide_cases(),
    }
    for case in cases():
        found["test" if int(case.key, 16) % 2 else "fit"].append(case)
    return found


def wide_cases() -> list[Case]:
    """Seven cases that counts were read from, on 64 devices: what several hosts change."""
    even = [case for case in cases() if int(case.key, 16) % 2 == 0]
    kept = [case for case in even if (case.fsdp, case.expert) == PLANS[1]]
    return [replace(c, fsdp=WIDE[0], expert=WIDE[1]) for c in kept if c.remat == "full"]


def _drawn(draw: random.Random, strategy: str, plan: tuple[int, int], size: int) -> Iterator[Case]:
    while True:
        block = draw.choice(("deepseek", "deepseek", "mixtral"))
        dense_layers = draw.choice((0, 2)) if block == "deepseek" else 0
        yield Case(
            strategy=strategy,
            fsdp=plan[0],
            expert=plan[1],
            remat="minimal" if size == SIZES - 1 else "full",
            block=block,
            layers=dense_layers + draw.choice((4, 5, 6, 8)),
            dense_layers=dense_layers,
            hidden=draw.choice((1024, 2048, 3072, 4096)),
            experts=draw.choice((8, 16, 32, 64)),
            top_k=draw.choice((2, 4, 8)),
            moe_ffn=draw.choice((512, 768, 1536, 2048)),
            vocab=draw.choice((32000, 65536, 102400)),
            sequence=draw.choice((1024, 2048, 4096)),
            pdbs=draw.choice((1, 2, 3, 4)),
            weight_dtype=draw.choice(("bfloat16", "float32")),
        )


def _rough_bytes(case: Case) -> float:
    """An upper estimate, only to draw no case that comes near the device's memory."""
    tokens, item = case.pdbs * case.sequence, 2 if case.weight_dtype == "bfloat16" else 4
    local = case.experts // case.expert
    experts = 3.0 * case.experts * case.hidden * case.moe_ffn
    weights = experts * case.layers / DEVICES + 2 * case.vocab * case.hidden / DEVICES
    width = case.hidden + case.moe_ffn
    if case.strategy == "sparse-ragged-dot":
        rows = tokens * case.top_k * min(case.expert, local)
        layer = 3.0 * rows * width * local
    else:
        rows = tokens * case.top_k * int(float(case.strategy[8:]) * 4) // 4
        layer = 4.0 * rows * width + 3 * rows * case.sequence
    kept = 3.0 * rows * width * case.layers if case.remat == "minimal" else 0
    return weights * item * 5 + 2 * experts * item + 2 * (layer + kept) + 10 * tokens * case.vocab
