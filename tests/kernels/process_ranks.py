"""One rank of an EP group of processes, for tests: python -m tests.kernels.process_ranks.

Arguments: scenario, address of JAX's coordinator, this process, number of processes. With one
process its devices are the ranks, and it looks at what rank 0 got.

Every process draws the tokens of all ranks from the same seed and compares what its own rank got,
bit for bit, with the definition over all ranks. A line of JSON per finding; the exit status is 1
where one is wrong. With MOEPROF_TEST_TWIN set the slow twins run in place of the kernels: on the
CPU that tries the scenario itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from moeprof.kernels import moe_combine, moe_dispatch, reset_runtime, setup
from moeprof.kernels.exchange import ops
from moeprof.kernels.runtime import expert_parallel
from moeprof.kernels.runtime.ep_groups import EpGroups

from . import moe_numpy
from .moe_cases import CHANNELS, Tokens, draw

ROWS = (("bfloat16", 8), ("float32", 260), ("float16", 2056))
DIES_AFTER_S = 0.5
TWIN = bool(os.environ.get("MOEPROF_TEST_TWIN"))


class Job(NamedTuple):
    """What a scenario works with."""

    rank: int
    ranks: int
    mesh: Mesh

    def put(self, by_rank: np.ndarray) -> jax.Array:
        """[EP, ...] on the devices of the ranks."""
        sharding = NamedSharding(self.mesh, PartitionSpec("expert"))
        return jax.make_array_from_callback(by_rank.shape, sharding, lambda at: by_rank[at])

    def on_ranks(self, function: Callable[..., object]) -> Callable[..., object]:
        spec = PartitionSpec("expert")

        def per_rank(*arrays: jax.Array) -> object:
            out = function(*(array[0] for array in arrays))
            return jax.tree.map(lambda array: array[None], out)

        run = jax.jit(
            jax.shard_map(per_rank, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False)
        )
        return lambda *by_rank: run(*(self.put(array) for array in by_rank))

    def own(self, tree: object) -> object:
        """This rank's part of arrays with the ranks as leading axis."""
        return jax.tree.map(lambda array: np.asarray(array.addressable_data(0))[0], tree)


problems = 0


def report(name: str, problem: str = "", **facts: object) -> None:
    global problems
    problems += bool(problem)
    line = {"what": name, "ok": not problem, **({"problem": problem} if problem else {}), **facts}
    print(json.dumps(line), flush=True)


def difference(name: str, found: np.ndarray, wanted: np.ndarray) -> str:
    """Nothing where the bits are equal, else the first place where they are not."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"{name}: {found.dtype}{found.shape}, expected {wanted.dtype}{wanted.shape}; "
    same = np.ascontiguousarray(found).view(np.uint8) == np.ascontiguousarray(wanted).view(np.uint8)
    if same.all():
        return ""
    wrong = np.argwhere(found != wanted)
    if not len(wrong):
        return f"{name}: signs or NaNs differ; "
    place = tuple(int(i) for i in wrong[0])
    rows = sorted({int(i) for i in wrong[:, 0]})
    return (
        f"{name}{list(place)}: {found[place]}, expected {wanted[place]}; {len(wrong)} wrong in "
        f"{len(rows)} rows, {rows[:8]}...{rows[-3:]}; "
    )


def wide(tokens: Tokens, hidden: int, seed: int, dtype: str) -> Tokens:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*tokens.x.shape[:2], hidden), np.float32)
    return tokens._replace(x=np.asarray(x.astype(jnp.dtype(dtype))))


def exchanges(num_experts: int) -> Callable[..., object]:
    """All three exchanges: dispatched arrays, combined rows, and rows sent again by the handle."""

    def run(
        x: jax.Array, idx: jax.Array, weights: jax.Array, rows: jax.Array
    ) -> tuple[object, ...]:
        recv_x, recv_idx, recv_weights, handle = moe_dispatch(x, idx, weights, num_experts)
        combined, pull = jax.vjp(lambda rows: moe_combine(rows, handle), rows)
        (again,) = pull(x)
        return (recv_x, recv_idx, recv_weights, *handle), combined, again

    return run


def check(job: Job, name: str, tokens: Tokens, run: Callable[..., object], seed: int) -> None:
    """Compare all that this rank got."""
    dispatched = moe_numpy.dispatch(*tokens, num_channels=CHANNELS)
    rows = np.random.default_rng(seed).standard_normal(dispatched.recv_x.shape, np.float32)
    rows = np.asarray(rows.astype(tokens.x.dtype))
    got, combined, again = job.own(run(tokens.x, tokens.topk_idx, tokens.topk_weights, rows))
    problem = ""
    for field, found, wanted in zip(dispatched._fields, got, dispatched, strict=True):
        problem += difference(field, found, wanted[job.rank])
    sums = moe_numpy.combine(rows, dispatched)[job.rank].astype(tokens.x.dtype)
    problem += difference("combined", combined, sums)
    resent = moe_numpy.cached_dispatch(tokens.x, dispatched)[job.rank]
    problem += difference("sent again", again, resent)
    report(name, problem[:2000])


def arrays(job: Job) -> None:
    """Named routings, every dtype, rows of one word and of many."""
    ranks, experts = job.ranks, 4 * job.ranks
    everywhere = draw(ranks, 37, 3, experts)
    cases = {
        "random": everywhere,
        "one token": draw(ranks, 1, 2, experts),
        "one slot": draw(ranks, 9, 1, experts),
        "more tokens than channels": draw(ranks, 1000, 8, experts),
        "last rank gets all": everywhere._replace(
            topk_idx=np.full_like(everywhere.topk_idx, experts - 1)
        ),
        "first rank gets all": everywhere._replace(topk_idx=np.zeros_like(everywhere.topk_idx)),
        "nothing is sent": everywhere._replace(topk_idx=np.full_like(everywhere.topk_idx, -1)),
    }
    for number, (name, tokens) in enumerate(cases.items()):
        run = job.on_ranks(exchanges(tokens.num_experts))
        for dtype, hidden in ROWS if name == "random" else ROWS[number % 3 :][:1]:
            case = wide(tokens, hidden, number, dtype)
            check(job, f"{name}, {dtype}, {hidden}", case, run, number)


def rounds(job: Job) -> None:
    """200 rounds of one program: random tokens, from no skew to all tokens on one expert."""
    experts = 8 * job.ranks
    run = job.on_ranks(exchanges(experts))
    for number in range(200):
        tokens = draw(job.ranks, 96, 4, experts, seed=number)
        rng = np.random.default_rng(number)
        favoured = rng.random(tokens.topk_idx.shape) < rng.choice([0.0, 0.5, 0.9, 1.0])
        skewed = np.where(favoured, np.int32(rng.integers(experts)), tokens.topk_idx)
        case = wide(tokens._replace(topk_idx=skewed), 512, number, "bfloat16")
        check(job, f"round {number}", case, run, number)


def again_after_reset(job: Job) -> None:
    """Set up, exchange, reset, several times over."""
    experts = 2 * job.ranks
    for number in range(4):
        if number:
            reset_runtime()
            start(job)
        tokens = wide(draw(job.ranks, 20, 2, experts, seed=number), 64, number, "float32")
        check(job, f"after reset {number}", tokens, job.on_ranks(exchanges(experts)), number)


def work(x: jax.Array) -> jax.Array:
    """Zero, after some 300 TFLOP in float32: seconds on a GPU.

    Whether XLA sends all products off at once or waits for some of them is its own affair.
    """
    matrix = jnp.eye(8192, dtype=jnp.float32) + x[0, 0] * 0

    def product(_: jax.Array, m: jax.Array) -> jax.Array:
        return jnp.matmul(m, m, precision=jax.lax.Precision.HIGHEST)

    return jax.lax.fori_loop(0, 270, product, matrix)[0, 1].astype(x.dtype)


def die(job: Job, *, in_flight: bool) -> None:
    """The last rank is killed; the others must end with its name, soon.

    In flight: its kernel waits behind other work on its GPU while the others' wait for it.
    """
    experts = 2 * job.ranks
    tokens = wide(draw(job.ranks, 64, 2, experts), 128, 0, "float32")
    rows = np.zeros((job.ranks, 64 * job.ranks, 128), np.float32)

    def busy_first(has_work: jax.Array, x: jax.Array, *rest: jax.Array) -> object:
        busy = jax.lax.cond(has_work[0] > 0, work, lambda x: x[0, 0] * 0, x)
        return exchanges(experts)(x + busy, *rest)

    operands = [tokens.x, tokens.topk_idx, tokens.topk_weights, rows]
    run = job.on_ranks(exchanges(experts))
    jax.block_until_ready(run(*operands))
    if in_flight:
        run = job.on_ranks(busy_first)
        has_work = np.zeros((job.ranks, 1), np.int32)
        has_work[-1] = 1
        operands.insert(0, has_work)
        for _ in range(2):  # the first compiles
            begin = time.perf_counter()
            jax.block_until_ready(run(*operands))
            seconds = round(time.perf_counter() - begin, 2)
        enough = "" if seconds > 2 * DIES_AFTER_S else "too short to be killed in"
        report("work before the exchange", enough, seconds=seconds)
    last = job.rank == job.ranks - 1
    if last and not in_flight:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.perf_counter()
    if last:  # from another thread: the call itself may return only when the work is done
        threading.Timer(DIES_AFTER_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        jax.block_until_ready(run(*operands))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        seconds = round(time.perf_counter() - begin, 2)
        text = str(error).splitlines()[0]
        named = f"rank {job.ranks - 1}" in text
        report(
            "a killed rank", "" if named else "its rank is not named", seconds=seconds, text=text
        )
        sys.stdout.flush()
        os._exit(0 if named else 1)
    report("a killed rank", "the exchange went on without it")


def start(job: Job) -> None:
    if not TWIN:
        setup(mesh=job.mesh, hidden_bytes=16)
        report(expert_parallel.frozen_state().mode.name)
        return
    groups = EpGroups((tuple(range(job.ranks)),), "expert", of_processes=True)
    state = expert_parallel._planned(groups)
    expert_parallel._frozen = (None, state)
    ops._runs_native = lambda *_: False


SCENARIOS: dict[str, Callable[[Job], None]] = {
    "arrays": arrays,
    "rounds": rounds,
    "again-after-reset": again_after_reset,
    "killed": lambda job: die(job, in_flight=False),
    "killed-in-flight": lambda job: die(job, in_flight=True),
}


def main(arguments: Sequence[str]) -> None:
    """Run a scenario as one of its ranks."""
    scenario, address, process, processes = arguments
    rank, ranks = int(process), int(processes)
    if ranks > 1:
        options = {} if TWIN else {"local_device_ids": [rank]}
        jax.distributed.initialize(address, ranks, rank, **options)
    devices = np.array(jax.devices())
    job = Job(rank, len(devices), Mesh(devices, ("expert",)))
    begin = time.perf_counter()
    start(job)
    report("setup", seconds=round(time.perf_counter() - begin, 3))
    SCENARIOS[scenario](job)
    reset_runtime()
    report("reset")
    sys.exit(problems > 0)


if __name__ == "__main__":
    main(sys.argv[1:])
