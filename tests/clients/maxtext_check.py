"""Question: does MaxText run under capture as it does alone, and are its captures of any use?

    make maxtext-check                                           # every case, in a venv of its own
    python tests/clients/maxtext_check.py --case capacity …      # some of them
    python tests/clients/maxtext_check.py --gpu --python PYTHON  # their twins on one GPU

With --json FILE the verdicts are written too, with the machine, its versions and the date.

A case trains a tiny DeepSeek for some steps, on eight virtual CPU devices or on one GPU, and says
what is wrong with the end, the output or the capture. PYTHON is one that has MaxText 0.2.5 and
moeprof; by default the one this runs in. It is no part of the test suite: it takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gpu.machine import gpu_machine
from machine import machine
from maxtext_plans import compared_arguments, compared_words
from maxtext_training import (
    COUNTS,
    KERNELS,
    STEPS,
    WINDOW,
    Ended,
    Place,
    Training,
    base_yml,
    environment,
)

import moeprof

MOST_UNNAMED = 0.1
"""Share of op time that no component may have; none has none on eight CPU devices."""
CAPACITY = {"sparse_matmul": "False", "capacity_factor": 1.25}
DROPLESS = {"sparse_matmul": "False", "capacity_factor": -1.0}
RAGGED_DOT = {"sparse_matmul": "True"}
# What makes equal mathematics give equal losses, and wrong gradients other ones.
EXACT = {"dtype": "float32", "matmul_precision": "highest", "learning_rate": 3e-3}
EXACT |= {"warmup_steps_fraction": 0.0, "metrics_file": "metrics.jsonl"}
LARGEST_DIFFERENCE = 1e-4
"""Of two losses in float32, of 6.7 and less; 7e-6 was seen."""
NAMED = {"attention", "router", "optimizer", "embedding"}


@dataclass
class Verdict:
    """What is wrong with a case, and what is worth a word though it is right."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def expect(self, is_so: object, fault: str) -> None:
        """Note a fault where something is not so."""
        if not is_so:
            self.faults.append(fault)


def judge(ended: Ended, verdict: Verdict, own: Sequence[str] = (), steps: int = WINDOW) -> None:
    """Look at a capture that should be whole. `own` are names in its folder beside MaxText's."""
    verdict.expect(ended.code == 0, f"exit code {ended.code}: {' | '.join(ended.lines[-3:])}")
    said = [line for line in ended.lines if line.startswith("Run  ")]
    verdict.expect(len(said) == 1, f"{len(said)} lines about the run folder, expected 1")
    names = {path.name for path in ended.folder.iterdir()}
    extra = names - {"run", "out", "cache", "metrics.jsonl", *own}
    extra = {name for name in extra if not name.startswith("log")}
    verdict.expect(not extra, f"files beside the run: {', '.join(sorted(extra))}")
    if not (ended.folder / "run" / "meta.json").exists():
        verdict.faults.append("no run folder")
        return
    run = moeprof.load(ended.folder / "run")
    used = int(run.steps["used"].sum())
    verdict.expect(used == steps, f"{used} steps used, expected {steps}")
    for law in run.trust.troubles:
        if law["verdict"] == "fail":
            verdict.faults.append(f"{law['check']}: {law['detail']}")
        else:
            verdict.notes.append(f"{law['check']} {law['verdict']}")
    table = run.ask("breakdown").table
    shares = table.groupby("component")["share"].sum()
    unnamed = float(shares.get("unattributed", 0.0))
    verdict.expect(unnamed <= MOST_UNNAMED, f"{unnamed:.0%} of op time has no name")
    missing = NAMED - set(shares.index)
    verdict.expect(not missing, f"no {', '.join(sorted(missing))} among the components")
    verdict.notes.append(f"{used} steps, trust {run.trust.verdict}, {unnamed:.1%} unnamed")


def capacity(place: Place) -> Verdict:
    """Capacity factor 1.25, EP 8, and an empty compilation cache."""
    verdict = Verdict()
    judge(Training(place, "capacity", capacity_options(place)).end(), verdict)
    return verdict


def capacity_options(place: Place) -> dict[str, object]:
    return place.mesh(expert=8) | CAPACITY


def warm_cache(place: Place) -> Verdict:
    """The same from a compilation cache that has its programs already."""
    verdict = Verdict()
    if not (place.work / "capacity" / "cache").exists():
        Training(place, "capacity", capacity_options(place)).end()
    options = capacity_options(place) | {"jax_cache_dir": "../capacity/cache"}
    judge(Training(place, "warm-cache", options).end(), verdict)
    return verdict


def ragged_dot(place: Place) -> Verdict:
    """Dropless by `jax.lax.ragged_dot`, FSDP 8."""
    verdict = Verdict()
    judge(Training(place, "ragged-dot", place.mesh(fsdp=8) | RAGGED_DOT).end(), verdict)
    return verdict


def compare(place: Place) -> Verdict:
    """What `moeprof compare` says was set differently: the two captures before this one."""
    verdict = Verdict()
    runs = [str(place.work / name / "run") for name in ("capacity", "ragged-dot")]
    if not all(map(os.path.exists, runs)):
        capacity(place), ragged_dot(place)
    words = [place.python, "-m", "moeprof", "compare", *runs, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(place, 0, 1))
    verdict.expect(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-300:]}")
    found = json.loads(done.stdout or "{}").get("settings", {})
    names = {row[0] if isinstance(row, list) else row["setting"] for row in found.get("rows", ())}
    expected = {"sparse_matmul", "capacity_factor"}
    if not place.is_gpu:
        expected |= {"ici_fsdp_parallelism", "ici_expert_parallelism"}
    verdict.expect(names >= expected, f"told {sorted(names)}, expected {sorted(expected)}")
    verdict.expect(not any("argument" in name for name in names), "arguments told by their place")
    verdict.notes.append(f"differ in {', '.join(sorted(names))}")
    return verdict


def own_profiler(place: Place) -> Verdict:
    """MaxText's own profiler in the middle of the window: ours steps aside, its profile stays."""
    verdict = Verdict()
    mine = {"profiler": "xplane", "skip_first_n_steps_for_profiler": 4, "profiler_steps": 3}
    ended = Training(place, "own-profiler", capacity_options(place) | mine).end()
    kept = list((ended.folder / "out").rglob("*.xplane.pb"))
    verdict.expect(len(kept) == 1, f"{len(kept)} profiles of MaxText's own, expected 1")
    run = moeprof.load(ended.folder / "run")
    judge(ended, verdict, steps=int(run.steps["used"].sum()))
    verdict.expect(run.steps["used"].any(), "no step used of the run's profile")
    return verdict


def bad_config(place: Place) -> Verdict:
    """An option that MaxText does not know: its message and its exit code."""
    verdict = Verdict()
    options = place.mesh() | {"no_such_option": 3}
    plain = Training(place, "bad-config-alone", options, capture=None).end()
    run = Training(place, "bad-config", options).end()
    message = next((line for line in plain.lines if line.startswith("ValueError: ")), "")
    verdict.expect(plain.code != 0 and message, "MaxText itself took the option")
    verdict.expect(run.code == plain.code, f"exit code {run.code}, alone {plain.code}")
    verdict.expect(message in run.lines, f"MaxText's message is lost: {message}")
    said = [line for line in run.lines if line.startswith("moeprof: ") and "waiting" not in line]
    verdict.expect(len(said) == 1, f"{len(said)} lines of moeprof, expected 1: {said}")
    verdict.notes.append(f"exit code {run.code} as alone; {' '.join(said)}")
    return verdict


def is_terminated(place: Place, when: str) -> Verdict:
    """SIGTERM: MaxText saves a checkpoint and ends as it does alone."""
    verdict = Verdict()
    plain = terminated(place, "alone", None)
    seconds = "1" if place.is_gpu else "5"  # a step takes milliseconds there
    run = terminated(place, when, ("--no-report", "--seconds", seconds))
    orderly = "Training stopped: Job received termination signal"
    verdict.expect(plain.has(orderly), "MaxText alone did not end in an orderly way")
    verdict.expect(run.has(orderly), f"killed: {' | '.join(run.lines[-3:])}")
    verdict.expect(run.code == plain.code, f"exit code {run.code}, alone {plain.code}")
    saved, alone = checkpoints(run), checkpoints(plain)
    verdict.expect(alone, "MaxText alone saved no checkpoint")
    verdict.expect(saved and (when == "before" or saved[-1] > 0), f"checkpoints: {saved}")
    status = json.loads((run.folder / "run" / "meta.json").read_text())["status"]
    verdict.notes.append(f"exit code {run.code} as alone, checkpoint {saved[-1:]}, run {status}")
    if when != "before":
        used = int(moeprof.load(run.folder / "run").steps["used"].sum())
        verdict.expect(used > 0, "no step of the window was saved")
        verdict.notes.append(f"{used} steps")
    return verdict


def terminated(place: Place, when: str, capture: Sequence[str] | None) -> Ended:
    """The run that gets SIGTERM; alone it does so once, for all that are compared with it."""
    folder = place.work / f"sigterm-{when}"
    code = folder / "code"
    if code.exists():
        return Ended(int(code.read_text()), (folder / "log0.txt").read_text().splitlines(), folder)
    options = capacity_options(place) | {"steps": 10**6, "enable_checkpointing": "true"}
    options |= {"async_checkpointing": "false", "checkpoint_period": 10**6}
    options["enable_autocheckpoint"] = "true"  # one where it is terminated
    options |= {"jax_cache_dir": "../sigterm-cache", "base_output_directory": folder / "out"}
    training = Training(place, folder.name, options, capture=capture)
    training.terminate_when(SIGTERM_AT[when])
    ended = training.end()
    if capture is None:
        code.write_text(str(ended.code))
    return ended


def checkpoints(ended: Ended) -> list[int]:
    """Steps that MaxText saved: the first one, and the one that it was terminated in."""
    saved = (ended.folder / "out" / "tiny" / "checkpoints").glob("*")
    return sorted(int(path.name) for path in saved if path.name.isdigit())


SIGTERM_AT = {
    "alone": "number parameters",  # the last line before the first step
    "before": "number parameters",
    "in": "moeprof: recording",
    "after": "moeprof: exported",
}


def two_processes(place: Place) -> Verdict:
    """Two processes of four devices each, one run folder."""
    verdict = Verdict()
    options = place.mesh(fsdp=2, expert=4) | CAPACITY
    ranks = [Training(place, "two-processes", options, rank=(rank, 2)) for rank in (0, 1)]
    ends = [rank.end() for rank in ranks]
    judge(ends[0], verdict)
    verdict.expect(ends[1].code == 0, f"rank 1: exit code {ends[1].code}")
    meta = json.loads((ends[0].folder / "run" / "meta.json").read_text())
    verdict.expect(meta["expected_processes"] == 2, f"{meta['expected_processes']} processes")
    profiles = list((ends[0].folder / "run" / "plugins" / "profile").glob("*/*.xplane.pb"))
    verdict.expect(len(profiles) == 2, f"{len(profiles)} profiles, expected 2")
    return verdict


def kernels(place: Place) -> Verdict:
    """moeprof's kernels in MaxText (EP 4, FSDP 2): the losses of its dense dropless path."""
    verdict = Verdict()
    mesh = place.mesh(expert=4, fsdp=2) | EXACT
    dense = Training(place, "dense", mesh | DROPLESS, capture=None).end()
    ours = Training(place, "kernels", mesh | RAGGED_DOT, script=KERNELS).end()
    judge(ours, verdict)
    if dense.code or ours.code:
        verdict.expect(not dense.code, f"dense path: {' | '.join(dense.lines[-3:])}")
        return verdict
    pairs = list(zip(dense.losses, ours.losses, strict=True))
    largest = max(abs(before - after) for before, after in pairs)
    verdict.expect(len(pairs) == STEPS, f"{len(pairs)} losses, expected {STEPS}")
    verdict.expect(largest <= LARGEST_DIFFERENCE, f"losses differ by up to {largest:.2g}: {pairs}")
    verdict.expect(pairs[-1][0] < pairs[0][0] - 0.1, f"nothing was learned: {pairs}")
    verdict.notes.append(f"losses {pairs[0][1]:.4f} to {pairs[-1][1]:.4f}, off by {largest:.1e}")
    return verdict


def routing(place: Place) -> Verdict:
    """`--routing auto`, EP 8: tokens of each expert are those that MaxText itself counts."""
    verdict = Verdict()
    options = capacity_options(place)
    ours = Training(place, "routing", options, capture=("--routing", "auto")).end()
    own = Training(place, "counts", options, capture=None, script=COUNTS).end()
    judge(ours, verdict, own=("counts.json",))
    verdict.expect(own.code == 0, f"MaxText's own counts: {' | '.join(own.lines[-3:])}")
    if verdict.faults:
        return verdict
    theirs = {tuple(each) for each in json.loads((own.folder / "counts.json").read_text())}
    table = moeprof.load(ours.folder / "run").trace.routing
    found = table.pivot_table("tokens", ["step", "layer"], "expert", aggfunc="sum", fill_value=0)
    wrong = [place for place, row in found.iterrows() if tuple(map(int, row)) not in theirs]
    verdict.expect(len(found) == 2 * WINDOW, f"{len(found)} layers of steps, expected {2 * WINDOW}")
    verdict.expect(not wrong, f"not what MaxText counts, (step, layer): {wrong}")
    verdict.notes.append(f"{len(found)} layers of steps equal")
    return verdict


def words(place: Place) -> Verdict:
    """A command line of MaxText, read by moeprof and by MaxText: the same values and refusals."""
    return Verdict(*compared_words(place))


def planned(place: Place) -> Verdict:
    """`memory --from` a capture: arguments by XLA for 8 H100 are those of the run, to the byte."""
    run = place.work / "capacity" / "run"
    if not run.exists():
        Training(place, "capacity", capacity_options(place)).end()
    return Verdict(*compared_arguments(place, run))


CASES: dict[str, Callable[[Place], Verdict]] = {
    "capacity": capacity,
    "warm-cache": warm_cache,
    "ragged-dot": ragged_dot,
    "compare": compare,
    "planned": planned,
    "words": words,
    "own-profiler": own_profiler,
    "bad-config": bad_config,
    "sigterm-before": lambda place: is_terminated(place, "before"),
    "sigterm-in": lambda place: is_terminated(place, "in"),
    "sigterm-after": lambda place: is_terminated(place, "after"),
    "two-processes": two_processes,
    "kernels": kernels,
    "routing": routing,
}
NEED_MORE_DEVICES = ("two-processes",)
CHAINS = (
    ("capacity", "warm-cache", "ragged-dot", "compare", "planned"),
    ("sigterm-before", "sigterm-in", "sigterm-after"),
)
"""Cases that look at what those before them wrote; any two others may run at a time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", action="append", choices=CASES, help="only this; repeatable")
    parser.add_argument("--gpu", action="store_true", help="on one GPU, no virtual devices")
    parser.add_argument("--python", default=sys.executable, help="a Python that has MaxText")
    parser.add_argument("--keep", type=Path, help="folder for what the cases write; kept")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--json", type=Path, help="file for the verdicts")
    options = parser.parse_args(argv)
    work = Path(options.keep or tempfile.mkdtemp(prefix="maxtext-check-")).absolute()
    work.mkdir(parents=True, exist_ok=True)
    place = Place(options.python, base_yml(options.python), work, options.gpu)
    names = options.case or [n for n in CASES if not (options.gpu and n in NEED_MORE_DEVICES)]
    with ThreadPoolExecutor(options.jobs) as pool:
        parts = pool.map(lambda chain: [tried(name, place) for name in chain], chained(names))
        by_name = {str(each["case"]): each for part in parts for each in part}
    told = [by_name[name] for name in names]
    failed = [each["case"] for each in told if each["faults"]]
    print(f"{len(names) - len(failed)} of {len(names)} cases passed")
    if options.json:
        about = gpu_machine() if options.gpu else machine("jax", "maxtext")
        document = {"schema": "moeprof.bench/1", "machine": about, "cases": told}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if not options.keep and not failed:
        shutil.rmtree(work, ignore_errors=True)
    elif failed:
        print(f"what they wrote: {work}")
    return 1 if failed else 0


def chained(names: Sequence[str]) -> list[list[str]]:
    """The cases, those of a chain together and in its order."""
    rest = [[name] for name in names if not any(name in chain for chain in CHAINS)]
    chains = [[name for name in chain if name in names] for chain in CHAINS]
    return sorted([chain for chain in chains if chain] + rest, key=lambda part: -len(part))


def tried(name: str, place: Place) -> dict[str, object]:
    """Run a case, print its line and a line for each fault, and return them with its time in s."""
    began = time.monotonic()
    try:
        verdict = CASES[name](place)
    except Exception as error:  # a capture that cannot be read is a fault of the case
        verdict = Verdict([f"{type(error).__name__}: {error}"])
    wall_s = time.monotonic() - began
    word = "FAIL" if verdict.faults else "PASS"
    print(f"{word}  {name:<15}{wall_s:6.1f} s  {'; '.join(verdict.notes)}", flush=True)
    for fault in verdict.faults:
        print(f"      {fault}", flush=True)
    return {"case": name, "wall_s": round(wall_s, 1), **asdict(verdict)}


if __name__ == "__main__":
    sys.exit(main())
