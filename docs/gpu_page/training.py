"""Question: what do whole training steps on GPUs cost, lose and leave in a capture?"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from gpu_page.cells import failures, measured_on, ratio, share, spread, table

GIB = 2**30
BASE = "dense-cf1.25"
ALONE = (
    "One GPU holds all experts: there is no exchange, so these figures are of compute and memory "
    "alone, and say nothing of what a strategy sends. "
)


def strategies(document: dict[str, Any]) -> str:
    """Speed and memory of every strategy, at its batches."""
    model = document["model"]
    rows, reasons = [], {}
    dropping = {
        (run["pdbs"], run["data"]): run["tokens_s_device"]
        for run in document["strategies"].get(BASE, {"runs": []})["runs"]
        if "failed" not in run
    }
    for name, found in document["strategies"].items():
        for run in found["runs"]:
            if "failed" in run:
                reasons[f"{name}, pdbs {run['pdbs']}, {run['data']}"] = run["failed"]
                continue
            rows.append(
                [
                    name,
                    str(run["pdbs"]),
                    run["data"],
                    f"{run['step_ms']:.1f}",
                    f"{run['tokens_s_device']:,.0f}",
                    ratio(run["tokens_s_device"], dropping.get((run["pdbs"], run["data"]))),
                    f"{max(run['peak_bytes'], default=0) / GIB:.2f}",
                    f"{run['busiest_expert_over_mean']:.2f}",
                    f"{run['busiest_rank_over_mean']:.2f}",
                ]
            )
    head = ["strategy", "pdbs", "data", "step ms", "tokens/s/device", f"× {BASE}", "peak GiB"]
    return "\n\n".join(
        [
            f"## The strategies on the bundled model, {gpus(document['expert'])}",
            f"{model['layers']} layers, hidden {model['hidden']}, {model['experts']} experts top-"
            f"{model['top_k']} of width {model['moe_ffn']}, bfloat16, sequences of "
            f"{document['sequence']}, expert parallelism {document['expert']}, full "
            f"rematerialisation, JAX's pool held to {document['pool_bytes'] / GIB:.1f} GiB. "
            "Attention is plain JAX in blocks, the same for every strategy, and takes a large part "
            "of each step: a faster one would set the strategies further apart. The "
            "router is untrained: how uneven it is stands in the last two columns, as the busiest "
            "expert and the busiest rank over their means. "
            + ("" if document["expert"] > 1 else ALONE)
            + measured_on(document["machine"]),
            table([*head, "expert ×", "rank ×"], rows),
            *failures(reasons),
            largest(document["strategies"]),
        ]
    )


def gpus(count: int) -> str:
    """``count`` GPUs in words."""
    return {1: "one GPU", 2: "two GPUs"}.get(count, f"{count} GPUs")


def largest(strategies: dict[str, Any]) -> str:
    """The largest batch of each strategy: measured where it was, and by the closed form."""
    measured = [
        f"{name} {'' if row['largest']['is_bounded'] else 'at least '}{row['largest']['pdbs']}"
        for name, row in strategies.items()
        if row.get("largest", {}).get("tried")
    ]
    projected = (f"{name} {row['projected_largest_pdbs']}" for name, row in strategies.items())
    missed = [
        f"{name} ran out of memory at pdbs {run['pdbs']}"
        for name, row in strategies.items()
        for run in row["runs"]
        if "RESOURCE_EXHAUSTED" in run.get("failed", "")
        and run["pdbs"] <= row["projected_largest_pdbs"]
    ]
    wrong = f" It misses: {', '.join(missed)}." if missed else ""
    by_form = f"by the closed form of `moeprof memory`: {', '.join(projected)}.{wrong}"
    if not measured:
        return f"Largest pdbs in that pool {by_form}"
    return (
        f"Largest pdbs in that pool, measured (it runs, and one more runs out of memory): "
        f"{', '.join(measured)}; {by_form}"
    )


def imbalance(document: dict[str, Any]) -> str:
    """What `expert_load` says of every capture kept."""
    model = document["model"]
    rows = []
    for row in document["rows"]:
        is_known = "not_known" not in row
        rows.append(
            [
                row["strategy"],
                f"{row['step_us']:,.0f}",
                f"{row['expert_imbalance']:.2f}",
                f"{row['rank_imbalance']:.2f}",
                f"{row['tax_least_us']:.0f} to {row['tax_most_us']:.0f}" if is_known else "–",
                share(row["tax_most_us"], row["step_us"]) if is_known else "–",
            ]
        )
    head = ["strategy", "step µs", "worst expert ×", "worst rank ×", "tax µs", "at most"]
    return "\n\n".join(
        [
            "## What uneven routing costs",
            "`moeprof analyze --only expert_load` on the captures in `tests/data/gpu`, by "
            f"`benchmarks/gpu/imbalance.py`: {model['layers']} layers, hidden {model['hidden']}, "
            f"{model['experts']} experts top-{model['top_k']}, pdbs {document['pdbs']}, sequences "
            f"of {document['sequence']}, untrained, expert parallelism "
            f"{document['plan']['expert']}; captured on {len(document['devices'])} × "
            f"{document['devices'][0]}, jax {document['jax']}. The tax is what a step would gain "
            "with equal loads: at least how much longer the grouped products of the slowest rank "
            "take than those of the mean one, at most what they would if every layer waited for "
            "its fullest rank. So small a model spends little of a step in its products; for the "
            "comparison above, loads were measured and no tax.",
            table(head, rows),
            *failures(
                {
                    row["strategy"]: row["not_known"]
                    for row in document["rows"]
                    if "not_known" in row
                }
            ),
        ]
    )


LOSSES = {
    "final_loss": "final",
    "held_out": "held out",
    "held_out_dropless": "held out, nothing dropped",
}


def convergence(document: dict[str, Any]) -> str:
    """Losses and what was dropped by router and strategy, and their differences by pairs."""
    setting, runs = document["setting"], document["runs"]
    trained = [run for run in runs if "failed" not in run]
    routers = {
        router: f"{router} (bias moved by {speed:g} a step)" if speed else router
        for router, speed in document["bias_speed"].items()
    }
    parts = [
        "## What dropping costs in loss",
        f"{setting['steps']:,} steps on real text (the standard library's sources as bytes), "
        f"{setting['layers']} layers, hidden {setting['hidden']}, {setting['experts']} experts top-"
        f"{setting['top_k']}, {setting['sequences']} sequences of {setting['sequence']} a step, "
        f"learning rate up to {setting['learning_rate']:g} in {setting['warm_up']} steps and then "
        f"along a cosine to 0, float32 weights, bfloat16 compute, products by cuBLAS "
        f"(`{document['xla_flags']}`). For each seed all strategies start from the same "
        "weights and see the same batches. Losses are nats per byte, mean ± standard error over "
        "seeds: the final one of the last twentieth of the steps, those held out of the trained "
        "weights on text that no run saw. Dropped is the share of (token, expert) pairs without a "
        "place. One device holds all experts; an exchange changes where a product is computed, "
        "not what. " + measured_on(document["machine"]),
    ]
    for router, name in routers.items():
        of_router = [run for run in trained if run["router"] == router]
        if not of_router:
            continue
        parts += [
            f"### Router: {name}",
            table(_LOSS_HEAD, _loss_rows(of_router, _compared(document["order"]))),
        ]
    parts += [
        "### Told apart from chance?",
        "The loss of the first less that of the second, paired by seed: mean ± standard error. "
        "`higher` and `lower` hold at 95 %, one-sided, by Student's t, each pair by itself. "
        "sparse-gmm and sparse-gmm-deepep compute the same but for rounding: one weights rows "
        "after the down projection, the other before it.",
        table(
            ["loss", "router", "first − second", "nats per byte", "seeds", "the first is"],
            [_difference(row) for row in document["order"]],
        ),
        *failures({run["strategy"]: run["failed"] for run in runs if "failed" in run}),
    ]
    return "\n\n".join(parts)


_LOSS_HEAD = (
    "strategy",
    "seeds",
    *LOSSES.values(),
    "dropped: first steps",
    "all",
    "last",
    "busiest expert ×",
)


def _compared(order: list[dict[str, Any]]) -> list[str]:
    """The strategies in the order in which they are compared."""
    return list(dict.fromkeys(row[key] for row in order for key in ("first", "second")))


def _loss_rows(runs: list[dict[str, Any]], first: list[str]) -> Iterable[list[str]]:
    """One row per strategy, those of ``first`` first: means over its seeds."""
    for strategy in dict.fromkeys([*first, *(run["strategy"] for run in runs)]):
        seeds = [run for run in runs if run["strategy"] == strategy]
        if not seeds:
            continue
        dropped = (
            statistics.mean(run["dropped"][when] for run in seeds)
            for when in ("first", "all", "last")
        )
        yield [
            strategy,
            str(len(seeds)),
            *(spread([run[quantity] for run in seeds]) for quantity in LOSSES),
            *(f"{100 * share_dropped:.1f} %" for share_dropped in dropped),
            f"{statistics.mean(run['busiest_expert_over_mean'] for run in seeds):.2f}",
        ]


def _difference(row: dict[str, Any]) -> list[str]:
    error = "" if row["standard_error"] is None else f" ± {row['standard_error']:.4f}"
    return [
        LOSSES[row["quantity"]],
        row["router"],
        f"{row['first']} − {row['second']}",
        f"{row['difference']:+.4f}{error}".replace("-", "−"),
        str(len(row["seeds"])),
        row["verdict"],
    ]


def captured_steps(document: dict[str, Any]) -> str:
    """Whether captures of every kind of script have all the steps that were asked for."""
    rows = []
    for name, row in document["cases"].items():
        if "failed" in row:
            continue
        folder, file = row["folder"], row["file"]
        rows.append(
            [
                name,
                f"{folder['steps_used']} of {document['steps_asked']}",
                f"{file['steps_used']} of {document['steps_asked']}",
                f"{folder['step_time_median'] / 1e6:.2f}",
                f"{folder['interval_mean'] / 1e6:.2f}",
                ", ".join(folder["troubles"]) or "none",
            ]
        )
    head = ["capture", "folder", "bare profile", "step ms", "interval ms", "laws that warn"]
    devices = document.get("devices", 1)
    if devices == 1:
        where, said = "one GPU", "a cold and a warm compilation cache, and MaxText 0.2.5. "
    else:
        where = f"{devices} GPUs, experts over them,"
        said = (
            "and MaxText 0.2.5 by its capacity buffers, by moeprof's kernels and by XLA's ragged "
            "all-to-all decomposed. "
        )
    return "\n\n".join(
        [
            f"## Captures on {where} have their steps",
            f"`moeprof capture --steps {document['steps_asked']}`, read as the run folder and as "
            "the profile alone, by `benchmarks/gpu/steps.py`: the bundled model with every "
            f"strategy, a script without annotations, {said}" + measured_on(document["machine"]),
            table(head, rows),
            *failures(
                {n: row["failed"] for n, row in document["cases"].items() if "failed" in row}
            ),
        ]
    )


def plans(document: dict[str, Any]) -> str:
    """What `moeprof.plan` said of steps before they ran, and what they took."""
    rows, reasons, unbound = [], {}, {}
    for name, row in document["cases"].items():
        if "compared" not in row:
            reasons[name] = row.get("failed") or row["skipped"]
            continue
        plan, run, found = row["plan"], row["run"], row["compared"]
        most = plan["at_most_s"]
        if most is None:
            unbound[name] = plan["no_at_most"]
        rows.append(
            [
                name,
                f"{plan['argument_bytes'] / GIB:.2f}{'' if found['arguments_are_equal'] else ' ≠'}",
                *_planned(plan["temp_bytes"], run["temp_bytes"], found["temp_error"]),
                *_planned_range(plan["peak_range_bytes"], run["peak_bytes"], found["beyond_range"]),
                f"{plan['at_least_s'] * 1e3:.1f}",
                f"{run['step_s'] * 1e3:.1f}",
                "–" if most is None else f"{most * 1e3:.1f}",
            ]
        )
    head = ["step", "arguments", "temp", "ran", "off", "peak", "ran", "beyond", "least ms"]
    return "\n\n".join(
        [
            "## Steps beside their plans",
            "`moeprof.plan` for one device, in a process beside the GPU, and the same step run on "
            "it, by `benchmarks/gpu/plans.py`: the bundled model with every strategy, a script in "
            "plain JAX, and Flax's nnx. Sizes are GiB. Arguments are equal to the byte where no ≠ "
            "says otherwise; temporaries are those of the executable's `memory_analysis`, the peak "
            "is the allocator's after three steps, times are medians of ten. A run chooses between "
            "Triton's kernels, with which temporaries were planned here, and cuBLAS', product by "
            "product; the peak is planned with either throughout, and ran so far beyond both. "
            + measured_on(document["machine"]),
            table([*head, "ran ms", "at rates ms"], rows),
            *failures(reasons),
            *(["No time at the rates reached is known:"] if unbound else []),
            *failures(unbound),
        ]
    )


def _planned_range(planned: list[int], measured: int | None, beyond: float | None) -> list[str]:
    least, most = (f"{size / GIB:.2f}" for size in planned)
    ran = "–" if measured is None else f"{measured / GIB:.2f}"
    return [
        least if least == most else f"{least} to {most}",
        ran,
        "–" if beyond is None else f"{100 * beyond:.1f} %",
    ]


def _planned(planned: int, measured: int | None, error: float | None) -> list[str]:
    ran = "–" if measured is None else f"{measured / GIB:.2f}"
    return [
        f"{planned / GIB:.2f}",
        ran,
        "–" if error is None else f"{100 * error:+.1f} %".replace("-", "−"),
    ]


def whole_runs(document: dict[str, Any]) -> str:
    """What `moeprof memory` said of whole commands before they ran, and what they took."""
    rows, reasons = [], {}
    for name, row in document["cases"].items():
        if "compared" not in row:
            reasons[name] = row.get("failed") or row["skipped"]
            continue
        plan, run, found = row["plan"], row["run"], row["compared"]
        equal = "" if found["arguments_are_equal"] else " ≠"
        rows.append(
            [
                name,
                plan["program"],
                f"{plan['argument_bytes'] / GIB:.2f}{equal}",
                *_planned_range(plan["range_bytes"], run["peak_bytes"], found["beyond_range"]),
                f"{plan['took_s']:.0f} s",
            ]
        )
    count = document["devices"]
    where = "one GPU" if count == 1 else f"{count} GPUs"
    return "\n\n".join(
        [
            f"## Whole commands beside their plans, on {where}",
            f"`moeprof memory --script` and `--maxtext … --compile` for {count} × "
            f"{document['hardware']}, and the same command under `moeprof capture`, by "
            "`benchmarks/gpu/whole_runs.py`: scripts in plain JAX and Flax's nnx, MaxText 0.2.5. "
            "Sizes are GiB of the fullest device. Arguments of the largest program are equal to "
            "the byte where no ≠ says otherwise; the peak is the allocator's of the whole process, "
            "and ran so far beyond the planned range. " + measured_on(document["machine"]),
            table(["command", "program", "arguments", "peak", "ran", "beyond", "planned in"], rows),
            *failures(reasons),
        ]
    )


def maxtext_paths(document: dict[str, Any]) -> str:
    """MaxText's own training by each of its paths, and on moeprof's kernels."""
    rows, reasons = [], {}
    for name, row in document["cases"].items():
        if "step_s" not in row:
            reasons[name] = row.get("failed") or row["skipped"]
            continue
        losses = [f"{loss:.4g}" for loss in row["losses"]]
        rows.append([name, f"{row['tokens_s_device']:,.0f}", f"{row['step_s'] * 1e3:.1f}", *losses])
    return "\n\n".join(
        [
            f"## MaxText by its paths, EP {document['devices']}",
            "MaxText 0.2.5 on synthetic data, one dense and four MoE layers of 16 experts, by "
            "`benchmarks/gpu/maxtext_paths.py`: with a capacity of 1.25, on moeprof's kernels "
            "(dropless), and dropless as it is. Medians of 30 steps, by MaxText's own metrics. "
            + measured_on(document["machine"]),
            table(["path", "tokens/s/device", "step ms", "first loss", "20th", "last"], rows),
            *failures(reasons),
        ]
    )
