"""Question: which steps of MaxText 0.2.5 does the closed form answer to, and how far off is it?

    python benchmarks/maxtext_grid_cases.py

Cases of `maxtext_compiled.py --grid`, fixed before any count was chosen by them: five sizes for
each strategy and plan of 8 devices, drawn by a generator with a fixed seed, four with remat_policy
full and one with minimal. By a hash of the case some are for reading and fitting counts, the others
are held out; `by_split` has more.

Run, it prints the errors of the closed form beside the results, by account: of the arena, and of
arena and arguments. What the stand-in for attention alone holds, a block of scores, is added to the
account's moment of attention.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from moeprof.projector.memory import project
from moeprof.projector.setting import Precision, Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

RESULT = Path(__file__).parent / "results" / "maxtext_grid.jsonl"
BLOCK = 512
"""Queries whose scores are computed at once, by the stand-in for attention."""
STRATEGIES = ("dense-cf1.25", "dense-cf4", "sparse-ragged-dot")
PLANS = ((1, 8), (8, 1), (2, 4))  # FSDP, EP
SIZES = 5
SEED = 21
SEED_LATER = 22
SEED_KERNELS = 23
SEED_LAST = 24
SHOWN = ("0ccdc0ab4a21", "5d6e41b92e63", "7153eadc123f", "79941d5ebb71", "d29c74b657a5")
HELD_OUT = ("test", "later", "kernels later", "wide last")
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
    def named(self) -> dict[str, str]:
        """Which account it is of, and the plan in words."""
        degrees = {"FSDP": self.fsdp, "EP": self.expert}
        plan = " × ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
        accounts = {"sparse-ragged-dot": "ragged_dot", "sparse-gmm": "grouped GEMM",
                    "sparse-gmm-deepep": "DeepEP"}  # fmt: skip
        return {"account": accounts.get(self.strategy, "capacity"), "plan": plan}

    @property
    def has_kernels(self) -> bool:
        """Whether experts are exchanged and multiplied by `moeprof.kernels`, as in
        examples/maxtext_kernels.py."""
        return self.strategy.startswith("sparse-gmm")

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
    out. ``shown``: five of those, which were read when counts gave all of ``fit`` within 6 %; two
    (5d6e41b92e63, 79941d5ebb71) led to counts. ``later``: held out until the counts were final.
    ``wide``: on several hosts, read; ``wide later``, compiled as held out, were read too, as one of
    them was 42 % off; ``wide last`` were held out then. ``kernels`` of an even hash are read,
    ``kernels later`` held out.
    """
    found: dict[str, list[Case]] = {"fit": [], "shown": [], "test": []}
    for case in cases():
        held = "shown" if case.key in SHOWN else "test"
        found[held if int(case.key, 16) % 2 else "fit"].append(case)
    found |= {"later": later_cases(), "wide": wide_cases(0), "wide later": wide_cases(1)}
    found |= {"kernels": kernel_cases(0), "kernels later": kernel_cases(1)}
    return found | {"wide last": last_cases()}


def wide_cases(odd: int) -> list[Case]:
    """Cases that counts were read from (0), or that were held out (1), on 64 devices."""
    half = [case for case in cases() if int(case.key, 16) % 2 == odd]
    kept = [case for case in half if (case.fsdp, case.expert) == PLANS[1]]
    return [replace(c, fsdp=WIDE[0], expert=WIDE[1]) for c in kept if c.remat == "full"]


def last_cases() -> list[Case]:
    """Four on 64 devices with capacity, compiled when counts were read from all others of them."""
    draw = random.Random(SEED_LAST)
    return [
        next(c for c in _drawn(draw, strategy, WIDE, 0) if _rough_bytes(c) < _MOST_BYTES)
        for strategy in ("dense-cf1.25", "dense-cf4", "dense-cf1.25", "dense-cf4")
    ]


def kernel_cases(odd: int) -> list[Case]:
    """Five sizes of each plan with `moeprof.kernels`, the even or the odd hashes of them.

    Without expert parallelism there is nothing to exchange: a grouped GEMM alone.
    """
    draw = random.Random(SEED_KERNELS)
    drawn = [
        next(c for c in _drawn(draw, strategy, plan, size) if _rough_bytes(c) < _MOST_BYTES)
        for size in range(SIZES)
        for plan in PLANS
        for strategy in ("sparse-gmm" if plan[1] == 1 else "sparse-gmm-deepep",)
    ]
    return [case for case in drawn if int(case.key, 16) % 2 == odd]


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
    if case.strategy.startswith("sparse"):
        rows = tokens * case.top_k * min(case.expert, local)
        layer = 3.0 * rows * width * (local if case.strategy == "sparse-ragged-dot" else 2)
    else:
        rows = tokens * case.top_k * int(float(case.strategy[8:]) * 4) // 4
        layer = 4.0 * rows * width + 3 * rows * case.sequence
    kept = 3.0 * rows * width * case.layers if case.remat == "minimal" else 0
    return weights * item * 5 + 2 * experts * item + 2 * (layer + kept) + 10 * tokens * case.vocab


def error_rows(results: Path = RESULT) -> list[dict[str, Any]]:
    """The closed form's errors beside each line of the results."""
    lines = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
    rows = {line["key"]: line for line in lines}
    return [
        {"key": case.key, "split": split, **case.named, **_errors(case, rows[case.key])}
        for split, listed in by_split().items()
        for case in listed
    ]


def projected_arena(case: Case) -> int:
    """Bytes of the closed form's arena, with what the stand-in for attention holds."""
    # Two arrays of a block's scores in float32 and one in bfloat16.
    block = 10 * case.pdbs * case.setting.model.heads * BLOCK * case.sequence
    return max(
        int(peak.size_bytes or 0) + block * (peak.name == "backward of attention")
        for peak in project(case.setting).worst.peaks
    )


def _errors(case: Case, row: dict[str, Any]) -> dict[str, Any]:
    """Of the arena, and of arena and arguments.

    ``beyond`` is how far the arena lies outside of both that XLA plans, with its own products and
    with those of libraries: a run has some of each.
    """
    plan, temp = project(case.setting), projected_arena(case)
    least, most = sorted((row["temp_bytes"], row["library_temp_bytes"] or row["temp_bytes"]))
    planned = row["temp_bytes"] + row["argument_bytes"]
    return {
        "temp": temp / row["temp_bytes"] - 1,
        "total": (temp + (plan.args_bytes or 0)) / planned - 1,
        "beyond": temp / min(max(temp, least), most) - 1,
    }


def summary(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[tuple[float, ...]]]:
    """By account and plan, of the cases that were read and of those held out.

    Each: how many, the median size and the largest of the errors of arena, and of arena and
    arguments, and the largest beyond both of XLA's plans.
    """
    found: dict[tuple[str, str], list[list[dict[str, Any]]]] = {}
    for row in rows:
        is_wide = row["split"].startswith("wide")
        for plan in (row["plan"],) if is_wide else (row["plan"], "all of 8"):
            halves = found.setdefault((row["account"], plan), [[], []])
            halves[row["split"] in HELD_OUT].append(row)
    return {key: [_figures(half) for half in halves] for key, halves in sorted(found.items())}


def _figures(rows: list[dict[str, Any]]) -> tuple[float, ...]:
    if not rows:
        return ()
    figures: list[float] = [len(rows)]
    for name in ("temp", "total"):
        errors = [row[name] for row in rows]
        figures += [statistics.median(map(abs, errors)), max(errors, key=abs)]
    return (*figures, max((row["beyond"] for row in rows), key=abs))


def table(*, by_plan: bool = True) -> str:
    """The errors as a table of Markdown, of each plan or of all plans of 8 devices together."""
    one = "n | arena: median | largest | with arguments: median | largest | beyond both plans"
    lines = [f"| account | plan | cases | {one} |", "|---" * 9 + "|"]
    for (account, plan), halves in summary(error_rows()).items():
        if not by_plan and plan not in ("all of 8", "FSDP 8 × EP 8"):
            continue
        for name, figures in zip(("read", "held out"), halves, strict=True):
            if figures:
                signs = ("", "+", "", "+", "+")
                cells = [f"{e * 100:{s}.1f} %" for e, s in zip(figures[1:], signs, strict=True)]
                line = " | ".join((account, plan, name, f"{figures[0]:.0f}", *cells))
                lines.append(f"| {line} |".replace("-", "−"))
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
