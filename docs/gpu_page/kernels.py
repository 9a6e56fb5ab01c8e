"""Question: what do grouped products and exchanges reach, and what do sanitizers say of them?"""

from __future__ import annotations

from typing import Any

from gpu_page.cells import best_of, failures, measured_on, rate, ratio, share, table

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


def rounds_of(run: dict[str, Any]) -> str:
    """How many the program did; a dash where that is not known."""
    return "–" if run.get("rounds") is None else str(run["rounds"])
