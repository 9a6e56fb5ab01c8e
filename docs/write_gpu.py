"""Question: what do the kernels and strategies reach on GPUs, by the committed measurements?

Prints docs/gpu.md from the result files of benchmarks/gpu.sh that are there:

    python docs/write_gpu.py > docs/gpu.md
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
GIB = 2**30

INTRODUCTION = """\
# On GPUs: what was measured

Written by `python docs/write_gpu.py > docs/gpu.md` from the files in `benchmarks/results/`,
measured on the NVIDIA GPUs that each table names; a test compares the two. `benchmarks/gpu.sh`
makes such files; where one was read off what a program printed, that is said there. Figures are
medians; peers take turns sample by sample within one run. TFLOP/s are 10^12 flops of used rows per
second, GB are 10^9 bytes, GiB 2^30. A dash: that contestant failed, as said below its table."""

GEMM_NAMES = {
    "moeprof": "moeprof",
    "torch_grouped_mm": "torch._grouped_mm",
    "pallas": "Pallas",
    "ragged_dot": "lax.ragged_dot",
    "dense_jax": "dense, JAX",
    "dense_torch": "dense, torch",
}
PEERS = ("torch_grouped_mm", "pallas", "ragged_dot")
DENSE = ("dense_jax", "dense_torch")
BASE = "dense-cf1.25"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    head = list(head)
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def measured_on(machine: dict[str, Any]) -> str:
    """Cards, driver, versions and date in one sentence."""
    cards = machine["cards"]
    name, driver, _ = (
        (part.strip() for part in cards[0].split(",")) if cards else ("no GPU", "", "")
    )
    others = (("jax", "jax"), ("torch", "torch"), ("nvcc", "nvcc"))
    versions = ", ".join(f"{label} {machine[key]}" for key, label in others)
    return f"Measured on {len(cards)} × {name}, driver {driver}, {versions}, {machine['date']}."


def grouped_gemm(document: dict[str, Any]) -> str:
    """Rates of every contestant, and ours over the best peer and over the best dense product."""
    rows = [row for row in document["rows"] if "tflops" in row]
    took_part = {
        name for row in document["rows"] for name in (*row.get("tflops", ()), *row["failed"])
    }
    names = [name for name in GEMM_NAMES if name in took_part]
    head = ["E, K → N", "pass", *(GEMM_NAMES[name] for name in names)]
    head += ["over best peer", "of dense"]
    cells = []
    for row in rows:
        spread = " (zipf)" if row["spread"] == "zipf" else ""
        rates = row["tflops"]
        found = [f"{rates[name]:.0f}" if name in rates else "–" for name in names]
        best = best_of(rates, PEERS)
        dense = best_of(rates, DENSE)
        cells.append(
            [
                f"{row['groups']}, {row['k']} → {row['n']}{spread}",
                row["pass"],
                *found,
                ratio(rates.get("moeprof"), best),
                share(rates.get("moeprof"), dense),
            ]
        )
    reasons = {
        f"{GEMM_NAMES.get(name, name)} at E={row.get('groups', '?')}, {row.get('pass', 'all')}": why
        for row in document["rows"]
        for name, why in row["failed"].items()
    }
    errors = [row["relative_error"] for row in rows if row["relative_error"] is not None]
    worst = (
        f"Largest relative error of ours against float32 products: {max(errors, default=0):.1e}."
    )
    return "\n\n".join(
        [
            "## Grouped GEMM under JAX",
            "32768 rows in bfloat16, lengths that differ by up to a factor of five (or fall as "
            "1/rank: zipf), in TFLOP/s. Pallas' figure is the best of a few tile sizes; the dense "
            "product has one matrix for all rows. " + measured_on(document["machine"]),
            *([document["note"]] if "note" in document else []),
            *([timed_alike(document["timing"])] if "timing" in document else []),
            table(head, cells),
            *([worst] if errors else []),
            *failures(reasons),
        ]
    )


def timed_alike(timing: dict[str, Any]) -> str:
    """How all contestants of one run were timed."""
    return (
        f"All are timed by the {timing['clock']}'s clock: samples of {timing['sample_s']:g} s, at "
        f"least {timing['least_calls']} calls that are sent off together."
    )


def grouped_gemm_check(document: dict[str, Any]) -> str:
    """Rates without JAX, in bursts with and without pairs of blocks, and in long samples."""
    names = {
        "moeprof": "moeprof",
        "moeprof_plain": "without pairs",
        "torch_grouped_mm": "torch._grouped_mm",
        "dense_torch": "dense, torch",
    }
    parts = [
        "## Grouped GEMM, called without JAX",
        f"{document['rows_per_product']} rows in {document['dtype']}, lengths that differ by "
        "up to a factor of five, in TFLOP/s. `moeprof` is what runs by default, pairs of "
        "blocks that share what they load. The card slows down as it warms, so only rates of "
        "one row compare. " + document["note"] + " " + measured_on(document["machine"]),
        products(document, "tflops", names),
    ]
    if "long_tflops" in document["rows"][0]:
        del names["moeprof_plain"]
        parts += ["In long samples:", products(document, "long_tflops", names)]
    reasons = {
        f"{names.get(name, name)} at E={row['groups']}, {row['k']} → {row['n']}, {row['pass']}": why
        for row in document["rows"]
        for name, why in row.get("failed", {}).items()
    }
    parts += failures(reasons)
    return "\n\n".join(parts)


def products(document: dict[str, Any], key: str, names: dict[str, str]) -> str:
    """The rates `key` of each product, and ours over torch's and of the dense one's."""
    cells = [
        [
            f"{row['groups']}, {row['k']} → {row['n']}",
            row["pass"],
            *(str(row[key].get(name, "–")) for name in names),
            ratio(row[key].get("moeprof"), row[key].get("torch_grouped_mm")),
            share(row[key].get("moeprof"), row[key].get("dense_torch")),
        ]
        for row in document["rows"]
    ]
    return table(["E, K → N", "pass", *names.values(), "over torch", "of dense"], cells)


def exchange(document: dict[str, Any]) -> str:
    """Times and bandwidths of every exchange, one table per load."""
    parts = [
        "## Dispatch and combine",
        "Two GPUs of one process, bfloat16 rows of 7168, top-8 of 256 experts drawn evenly. Ops "
        "named `tokens` send a token once per rank, as ours do; `pairs` a row per (token, expert), "
        "as dropless paths do without ours. all_to_all is padded to the most rows that can go. "
        "`spread_rows` is the dispatch along known routes that the gradient of a combine makes. "
        "Payload is the bytes of rows that must cross the link per direction over the time; "
        "padding is none. A step is there and back. " + measured_on(document["machine"]),
        *([document["note"]] if "note" in document else []),
    ]
    for load in document["loads"]:
        times = {row["op"]: row["us"] for row in load["ops"]}
        ours = times.get("step: moe_dispatch, moe_combine")
        rows = [
            [
                f"`{row['op']}`",
                f"{row['us']:,.0f}",
                rate(row["payload_GB_s"]),
                rate(row["wire_GB_s"]),
                ratio(row["us"], ours) if row["op"].startswith("step") else "",
            ]
            for row in [*load["ops"], *load["peer_copies"]]
        ]
        head = ["op", "µs", "payload GB/s", "on the wire GB/s", "× our step"]
        parts += [f"### {load['tokens']} tokens per GPU", table(head, rows)]
        parts += failures(load["failed"])
    return "\n\n".join(parts)


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
            f"`benchmarks/gpu_imbalance.py`: {model['layers']} layers, hidden {model['hidden']}, "
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


def spread(values: list[float]) -> str:
    """Mean ± its standard error, four decimals; the mean alone of a single value."""
    if len(values) == 1:
        return f"{values[0]:.4f}"
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.4f} ± {error:.4f}"


def rounds_of(run: dict[str, Any]) -> str:
    """How many the program did; a dash where that is not known."""
    return "–" if run.get("rounds") is None else str(run["rounds"])


def sanitizers(document: dict[str, Any]) -> str:
    """What compute-sanitizer found."""
    rows = [
        [
            run["program"],
            run["tool"],
            rounds_of(run),
            "clean" if run["is_clean"] else str(run["found"] or run["wrong"]),
        ]
        for run in document["runs"]
        if not run.get("is_planted")
    ]
    return "\n\n".join(
        [
            "## compute-sanitizer",
            "Programs without a framework run random cases and compare bit for bit with the host."
            " Every buffer of the products is an allocation of exactly its size. Before them each"
            " tool counts a fault planted for it. racecheck follows what threads load and store in"
            " shared memory: tiles that the copy engine (TMA) writes and the tensor cores read are"
            " no thread's accesses, and only the comparison of results speaks for those."
            f" {measured_on(document['machine'])}",
            table(["program", "tool", "rounds", "errors or hazards"], rows),
        ]
    )


def exchange_native(document: dict[str, Any]) -> str:
    """The exchange kernels alone, by tokens and number of blocks."""
    timed = [row for row in document["rows"] if "tokens" in row]
    rows = [
        [
            row["operation"],
            f"{row['tokens']:,}",
            str(row["blocks"] or "–"),
            f"{row['median_us']:.1f}",
            f"{row['GB_s']:.0f}",
        ]
        for row in sorted(timed, key=lambda row: (row["tokens"], row["operation"], row["blocks"]))
    ]
    first = timed[0]
    meetings = [row for row in document["rows"] if "tokens" not in row]
    notes = [f"A {row['operation']} takes {row['mean_us']:.1f} µs." for row in meetings]
    return "\n\n".join(
        [
            "## The exchange kernels alone",
            (
                f"Two GPUs of one process without JAX, rows of {first['hidden']} bfloat16,"
                f" top-{first['top_k']} of {first['experts']} experts drawn evenly, times of the"
                " slower rank by CUDA events. The peer copy moves as many bytes in both directions"
                " at once by the copy engines. " + measured_on(document["machine"])
            ),
            table(["operation", "tokens", "blocks", "µs", "payload, GB/s"], rows),
            *notes,
        ]
    )


def exchange_processes(document: dict[str, Any]) -> str:
    """Dispatch and combine with one process per GPU, beside one for all."""
    rows = [
        [
            f"{row['processes']}",
            f"{row['tokens']:,}",
            f"{row['dispatch_us']:.0f}",
            f"{row['dispatch_GB_s']:.0f}",
            f"{row['combine_us']:.0f}",
            f"{row['combine_GB_s']:.0f}",
        ]
        for row in document["rows"]
    ]
    head = ["processes", "tokens", "dispatch, µs", "GB/s", "combine, µs", "GB/s"]
    return "\n\n".join(
        [
            "## Dispatch and combine, a process per GPU",
            "Two GPUs under JAX, by one process each or by one for both, loads as above; times of"
            " the slower process, payload over them. " + measured_on(document["machine"]),
            table(head, rows),
            *failures(document["failed"]),
        ]
    )


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
    return "\n\n".join(
        [
            "## Captures on one GPU have their steps",
            f"`moeprof capture --steps {document['steps_asked']}`, read as the run folder and as "
            "the profile alone, by `benchmarks/gpu_steps.py`: the bundled model with every "
            "strategy, a script without annotations, a cold and a warm compilation cache, and "
            "MaxText 0.2.5. " + measured_on(document["machine"]),
            table(head, rows),
            *failures(
                {n: row["failed"] for n, row in document["cases"].items() if "failed" in row}
            ),
        ]
    )


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "gpu_grouped_gemm_check.json": grouped_gemm_check,
    "gpu_grouped_gemm.json": grouped_gemm,
    "gpu_exchange.json": exchange,
    "gpu_exchange_processes.json": exchange_processes,
    "gpu_exchange_native.json": exchange_native,
    "gpu_ab.json": strategies,
    "gpu_ab_one_gpu.json": strategies,
    "gpu_imbalance.json": imbalance,
    "gpu_steps.json": captured_steps,
    "gpu_convergence.json": convergence,
    "gpu_sanitize.json": sanitizers,
}


def best_of(rates: dict[str, float], names: Iterable[str]) -> float | None:
    """The highest rate of those contestants that have one."""
    return max((rates[name] for name in names if name in rates), default=None)


def rate(value: float) -> str:
    """A bandwidth: whole numbers, one decimal below ten."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def ratio(ours: float | None, other: float | None) -> str:
    """``ours`` over ``other`` with two decimals below ten, else none."""
    if not ours or not other:
        return "–"
    value = ours / other
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def share(ours: float | None, other: float | None) -> str:
    """``ours`` in percent of ``other``."""
    return f"{100 * ours / other:.0f} %" if ours and other else "–"


def failures(reasons: dict[str, str]) -> list[str]:
    """A list of what failed and why; nothing where nothing did."""
    lines = [
        f"- {name}: {why.split(' [')[0][:160].replace('`', '')}" for name, why in reasons.items()
    ]
    return ["\n".join(lines)] if lines else []


def wrapped(part: str) -> str:
    """A paragraph in lines of at most 100 characters; headings, tables and lists as they are."""
    return (
        part
        if part.startswith(("#", "|", "-"))
        else textwrap.fill(part, 100, break_on_hyphens=False)
    )


def page(results: Path = RESULTS) -> str:
    """The whole page."""
    parts = []
    for name, section in SECTIONS.items():
        file = results / name
        if file.is_file():
            found = section(json.loads(file.read_text(encoding="utf-8")))
            parts += [wrapped(part) for part in found.split("\n\n")]
    return "\n\n".join([INTRODUCTION, *parts])


if __name__ == "__main__":
    print(page())
