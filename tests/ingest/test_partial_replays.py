"""Replays of graphs that lack some of their kernels.

Each step is one execution that replays graphs, one every 400 ns, each of kernels of 15 ns.
"""

import pytest
from builders import gpu
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.ingest import open_run

NAMES = ("norm", "gate", "up", "act", "down", "add")
STEPS = 5


def opened(folder, nodes, *, call="hipGraphLaunch", has_nodes=False, module=lambda step: 7):
    """A capture whose replay (step, place) brought ``nodes(step, place)``, places in `NAMES`."""
    calls, kernels, runs = [], [], []
    for step in range(STEPS):
        runs.append(
            event(
                "[0] X LoadedExecutable::Execute (jit_step)",
                gpu.start_ns(0, step, 0) - 5,
                2_000,
                _c=500 + step,
            )
        )
        for place in range(3):
            at, number = gpu.start_ns(0, step, 4 * place), gpu.number(0, step, place)
            calls.append(event(call, at, 20, correlation_id=number, device_id=0))
            for n, node in enumerate(nodes(step, place)):
                known = {"cuda_graph_id": 3, "cuda_graph_node_id": 100 + node} if has_nodes else {}
                kernels.append(
                    event(
                        f"k_{NAMES[node]}",
                        at + 30 + 20 * n,
                        15,
                        hlo_op=Ref(NAMES[node]),
                        program_id=module(step),
                        correlation_id=number,
                        **known,
                    )
                )
    data = xspace(
        metadata(p7=gpu.program(NAMES), p8=gpu.program(NAMES)),
        Plane("/device:GPU:0", (line(gpu.STREAM, *kernels),)),
        host(gpu.main_thread(STEPS), line("py_xla_execute/0", *runs, *calls)),
    )
    file = folder / "node0.xplane.pb"
    file.write_bytes(data)
    return open_run(file)


def launches(trace):
    return next(law for law in trace.trust if law.check == "launches")


def test_graphs_of_several_sizes_under_one_name_are_recorded_whole(tmp_path):
    # the second is a part of the first: a comparison by name takes it for half a replay
    sizes = (6, 2, 6)
    trace = opened(tmp_path, lambda step, place: range(sizes[place]))
    assert (launches(trace).verdict, launches(trace).found) == ("ok", 15)
    assert trace.steps["used"].all()


@pytest.mark.parametrize("has_nodes", [True, False])
def test_a_replay_is_missed_in_part_at_its_place(tmp_path, has_nodes):
    def nodes(step, place):
        full = (0, 1, 1, 4) if not has_nodes else (0, 1, 2, 4)
        return full[:2] if (step, place) == (3, 1) else full

    trace = opened(tmp_path, nodes, has_nodes=has_nodes)
    assert launches(trace).verdict == "warn"
    assert "1 replays of graphs on GPU 0 are recorded in part" in launches(trace).detail
    assert trace.steps["used"].tolist() == [True, True, True, False, True]


def test_rounds_of_a_loop_in_a_graph_differ(tmp_path):
    # nodes 1 and 2 run twice in step 2, three times in the others
    def nodes(step, place):
        return (0, *(1, 2) * (2 if step == 2 else 3), 4)

    trace = opened(tmp_path, nodes, call="cuGraphLaunch (CudaGraph:3)", has_nodes=True)
    assert launches(trace).verdict == "ok"


def test_a_branch_that_is_seldom_taken_is_no_loss_in_the_others(tmp_path):
    def nodes(step, place):
        return (0, 1, 2, 3) if step == 2 else (0, 3)

    trace = opened(tmp_path, nodes, has_nodes=True)
    assert launches(trace).verdict == "ok"


def test_programs_whose_graphs_share_names_are_not_compared(tmp_path):
    # step 4 is of another program, whose graphs are smaller
    trace = opened(
        tmp_path,
        lambda step, place: range(3 if step == 4 else 5),
        module=lambda step: 8 if step == 4 else 7,
    )
    assert (launches(trace).verdict, launches(trace).found) == ("ok", 15)
