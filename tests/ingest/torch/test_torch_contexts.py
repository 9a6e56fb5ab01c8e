"""Where an op stands and in which phase: traces built by hand."""

import numpy as np
from kineto_builder import Kineto

from moeprof.analyzers.attribution import work_in_steps
from moeprof.analyzers.classify import classify
from moeprof.analyzers.costs.table import costs_of
from moeprof.ingest.run import open_run

ENGINE = "autograd::engine::evaluate_function: "
BACKWARD = 200


def paths(trace):
    """Path of the op of each kernel, by the kernel's name."""
    rows = trace.events["instruction"].to_numpy()
    found = np.append(trace.hlo_ops["op_name"].to_numpy(), "")[rows]
    names = trace.events["name"].astype(str)
    return {
        name: path if row >= 0 else "" for name, path, row in zip(names, found, rows, strict=True)
    }


def opened(kineto, tmp_path):
    return open_run(kineto.write(tmp_path / "a.pt.trace.json"))


def forward_and_backward(kineto):
    """A linear layer in a module, and its node on the engine's thread."""
    kineto.step(1, 0, 1000)
    kineto.function("nn.Module: Router_0", 10, 50)
    forward = kineto.op("aten::mm", 20, 20, sequence=7)
    kineto.kernel("forward", 30, 5, launch=25, op=forward)
    kineto.op(f"{ENGINE}MmBackward0", 200, 60, thread=BACKWARD, sequence=7, forward=1)
    kineto.op("MmBackward0", 201, 58, thread=BACKWARD, sequence=7, forward=1)
    backward = kineto.op("aten::mm", 210, 20, thread=BACKWARD)
    kineto.kernel("backward", 215, 5, launch=212, op=backward, thread=BACKWARD)


def test_a_backward_op_stands_where_its_forward_op_does(tmp_path):
    kineto = Kineto()
    forward_and_backward(kineto)
    assert paths(opened(kineto, tmp_path)) == {
        "forward": "torch/forward/Router_0/aten::mm",
        "backward": "torch/backward/Router_0/aten::mm/MmBackward0/aten::mm",
    }


def test_the_thread_that_autograd_means_is_the_one_whose_ops_bear_the_nodes_names(tmp_path):
    """A thread that counts its own nodes (a data loader, recomputing) has the number 7 as well."""
    kineto = Kineto()
    kineto.function("nn.Module: Other_0", 5, 60, thread=300)
    kineto.op("aten::add", 22, 20, thread=300, sequence=7)
    forward_and_backward(kineto)
    assert paths(opened(kineto, tmp_path))["backward"].startswith("torch/backward/Router_0/")


def test_a_node_whose_forward_op_is_not_there_is_backward_all_the_same(tmp_path):
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.op(f"{ENGINE}MmBackward0", 200, 60, thread=BACKWARD, sequence=7, forward=1)
    backward = kineto.op("aten::mm", 210, 20, thread=BACKWARD)
    kineto.kernel("backward", 215, 5, launch=212, op=backward, thread=BACKWARD)
    trace = opened(kineto, tmp_path)
    assert paths(trace)["backward"] == "torch/backward/aten::mm"
    law = next(law for law in trace.trust if law.check == "forward_ops")
    assert (law.verdict, law.expected, law.found) == ("warn", 1, 0)


def test_without_stacks_an_op_that_makes_a_node_inside_a_node_is_recomputed(tmp_path):
    """So is what stands between two such ops; what follows in the node is its gradient."""
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.op("aten::mm", 20, 20, sequence=7)
    kineto.op(f"{ENGINE}MmBackward0", 200, 100, thread=BACKWARD, sequence=7, forward=1)
    kineto.op("MmBackward0", 201, 98, thread=BACKWARD, sequence=7, forward=1)
    for name, at, more in (
        ("aten::silu", 210, {"sequence": 0}),
        ("aten::argsort", 220, {}),
        ("aten::mul", 230, {"sequence": 1}),
        ("aten::mm", 240, {}),
    ):
        op = kineto.op(name, at, 5, thread=BACKWARD, **more)
        kineto.kernel(name, at + 2, 1, launch=at + 1, op=op, thread=BACKWARD)
    found = {name: path.split("/")[1] for name, path in paths(opened(kineto, tmp_path)).items()}
    assert found == {
        "aten::silu": "recompute",
        "aten::argsort": "recompute",
        "aten::mul": "recompute",
        "aten::mm": "backward",
    }


def test_with_stacks_a_module_inside_a_node_is_recomputed_and_stands_by_itself(tmp_path):
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.function("nn.Module: Block_0", 10, 50)
    kineto.op("aten::mm", 20, 20, sequence=7)
    kineto.op(f"{ENGINE}MmBackward0", 200, 100, thread=BACKWARD, sequence=7, forward=1)
    kineto.function("nn.Module: Attention_3", 210, 40, thread=BACKWARD)
    op = kineto.op("aten::mm", 220, 20, thread=BACKWARD, sequence=0)
    kineto.kernel("again", 230, 5, launch=225, op=op, thread=BACKWARD)
    assert paths(opened(kineto, tmp_path)) == {"again": "torch/recompute/Attention_3/aten::mm"}


def test_what_moves_rows_in_the_experts_module_is_on_their_way_or_back(tmp_path):
    """Before its first product and behind its last; between them it belongs to the experts."""
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.function("nn.Module: MixtralExperts_0", 10, 500)
    for at, name in enumerate(
        ("sort", "index", "_grouped_mm", "silu", "index_select", "_grouped_mm", "index_add")
    ):
        op = kineto.op(f"aten::{name}", 20 + 20 * at, 10, sequence=at)
        kineto.kernel(f"kernel {at} {name}", 25 + 20 * at, 2, launch=22 + 20 * at, op=op)
    work = work_in_steps(opened(kineto, tmp_path)).pandas().sort_values("start_ns")
    assert work["component"].tolist() == [
        *("permute", "permute", "grouped_gemm", "expert_elementwise", "expert_elementwise"),
        *("grouped_gemm", "unpermute"),
    ]


def test_a_feed_forward_module_in_a_moe_layer_is_only_known_to_be_in_it(tmp_path):
    """`DeepseekV3MLP` is the shared expert's class, and was that of each routed one."""
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    for at, outer in ((10, "DeepseekV3MoE_0"), (200, "DeepseekV3DecoderLayer_0")):
        kineto.function(f"nn.Module: {outer}", at, 100)
        kineto.function("nn.Module: DeepseekV3MLP_0", at + 5, 50)
        op = kineto.op("aten::mm", at + 10, 10, sequence=at)
        kineto.kernel(outer, at + 15, 2, launch=at + 12, op=op)
    work = work_in_steps(opened(kineto, tmp_path)).pandas().sort_values("start_ns")
    assert work["component"].tolist() == ["moe_other", "dense_mlp"]


def test_the_optimizer_is_in_no_phase_be_gradients_on_or_off(tmp_path):
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.annotation("Optimizer.step#AdamW.step", 100, 50)
    op = kineto.op("aten::_fused_adamw_", 110, 20, sequence=9)
    kineto.kernel("adamw", 115, 5, launch=112, op=op)
    assert paths(opened(kineto, tmp_path)) == {
        "adamw": "torch/other/Optimizer.step#AdamW.step/aten::_fused_adamw_"
    }


def test_a_kernel_without_an_op_is_of_what_is_around_its_launch(tmp_path):
    """As a library launches it from Python: there is no op, but a module."""
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.function("nn.Module: TokenDispatcher_0", 10, 50)
    kineto.kernel("void deep_ep::intranode::dispatch<8, 768>", 30, 5, launch=25)
    trace = opened(kineto, tmp_path)
    (path,) = paths(trace).values()
    assert path == "torch/forward/TokenDispatcher_0/kernel"
    ran = trace.hlo_ops[trace.hlo_ops["op_name"] == path]
    assert ran["custom_call_target"].tolist() == ["void deep_ep::intranode::dispatch<8, 768>"]


def test_kernels_of_a_graph_have_no_op_of_their_own(tmp_path):
    """One call launches them all, from inside an op or not."""
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.function("nn.Module: Model_0", 10, 50)
    kineto.kernel("in a graph", 30, 5, launch=25, call="cudaGraphLaunch")
    op = kineto.op("aten::mm", 60, 5)
    kineto.kernel("alone", 65, 5, launch=61, op=op)
    assert paths(opened(kineto, tmp_path)) == {
        "in a graph": "",
        "alone": "torch/other/aten::mm",
    }


def test_kernels_of_a_graph_that_an_op_launches_are_not_its_own(tmp_path):
    """As with ``mode="reduce-overhead"``: the region is no part of the model."""
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.function("nn.Module: Attention_0", 10, 100)
    op = kineto.op("Torch-Compiled Region: 0/0", 20, 50)
    kineto.kernel("in a graph", 30, 5, launch=25, op=op, call="cudaGraphLaunch")
    assert paths(opened(kineto, tmp_path)) == {"in a graph": ""}


def test_a_graph_of_number_0_is_none(tmp_path):
    """Kineto built with CUDA 12 or later writes 0 for every kernel outside of graphs."""
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.function("nn.Module: Experts_0", 10, 100)
    ids = {"graph id": 0, "graph node id": 0}
    kineto.kernel("my_kernel", 30, 5, launch=25, **ids)
    trace = opened(kineto, tmp_path)
    assert paths(trace) == {"my_kernel": "torch/forward/Experts_0/kernel"}
    assert trace.events["graph_node"].tolist() == [-1]


def test_gpus_of_one_process_share_their_ops_names(tmp_path):
    """The k-th run on each: which of two threads comes first differs from step to step."""
    kineto = Kineto()
    for step in (1, 2):
        kineto.step(step, 1000 * step, 900)
        for gpu in (0, 1):
            at = 1000 * step + (50 if gpu == step - 1 else 10)
            op = kineto.op("aten::mul", at, 20, thread=300 + gpu)
            kineto.kernel("mul", at + 10, 5, launch=at + 5, op=op, thread=300 + gpu, gpu=gpu)
    trace = opened(kineto, tmp_path)
    assert trace.events["op"].nunique() == 1
    assert sorted(trace.events["device"]) == [0, 0, 1, 1]


def test_what_a_hook_gathers_in_the_backward_pass_is_no_combine(tmp_path):
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.function("nn.Module: FSDPMoE_0", 10, 80)
    kineto.function("moe.py(10): combine", 12, 70)
    kineto.op("aten::add", 20, 20, sequence=7)
    kineto.op(f"{ENGINE}AddBackward0", 200, 100, thread=BACKWARD, sequence=7, forward=1)
    kineto.op("AddBackward0", 201, 98, thread=BACKWARD, sequence=7, forward=1)
    for at, name in ((210, "FSDP::all_gather (layers.1)"), (250, "some hook")):
        kineto.annotation(name, at, 30, thread=BACKWARD)
        message = {"Collective name": "_allgather_base", "Process Group Name": "0"}
        message |= {"Group size": 1, "Process Group Ranks": "[0]", "dtype": "Float"}
        op = kineto.op("record_param_comms", at + 5, 20, thread=BACKWARD, more=message)
        kineto.kernel(
            "ncclDevKernel_AllGather_RING_LL(x)", at + 12, 3, launch=at + 8, op=op, thread=BACKWARD
        )
    work = work_in_steps(opened(kineto, tmp_path)).pandas().sort_values("start_ns")
    assert work["component"].tolist() == ["weight_gather", "collectives"]


def test_a_name_with_slashes_is_one_scope(tmp_path):
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    kineto.annotation("moe/dispatch (a2a)", 10, 50)
    op = kineto.op("aten::copy_", 20, 20)
    kineto.kernel("copy", 30, 5, launch=25, op=op)
    assert paths(opened(kineto, tmp_path)) == {"copy": "torch/other/moe.dispatch (a2a/aten::copy_"}


def test_runs_of_the_same_op_in_a_step_are_ops_of_their_own(tmp_path):
    """Their names are the same in every step."""
    kineto = Kineto()
    for step in (1, 2):
        kineto.step(step, 1000 * step, 900)
        for n in range(2):
            at = 1000 * step + 100 * n
            op = kineto.op("aten::add", at + 20, 20)
            kineto.kernel("add", at + 30, 5, launch=at + 25, op=op)
            kineto.kernel("add", at + 36, 5, launch=at + 27, op=op)
    trace = opened(kineto, tmp_path)
    table = trace.events.groupby(["op", "step"], observed=True).size().unstack()
    assert table.to_numpy().tolist() == [[2, 2], [2, 2]]


def test_one_more_collective_shifts_no_other(tmp_path):
    """Logging in the first step: the exchanges of the others keep their part and size."""
    kineto = Kineto(0, 2)
    for step in (1, 2):
        at = 1000 * step
        kineto.step(step, at, 900)
        if step == 1:
            kineto.annotation("logging", at + 10, 40)
            kineto.collective("all_to_allv", at + 15, 8, group="ep", ranks=[0, 1])
        for name, begin, size in (("token_dispatch", 110, 1000), ("token_combine", 210, 4000)):
            kineto.annotation(name, at + begin, 40)
            kineto.collective("all_to_allv", at + begin + 5, size, group="ep", ranks=[0, 1])
    trace = opened(kineto, tmp_path)
    parts = classify(trace.programs).pandas().set_index("op")["component"]
    sizes = trace.hlo_ops.set_index("op")["size_bytes"]
    ops = trace.events.sort_values("start_ns")["op"].astype(str)
    assert [(parts[op], sizes[op]) for op in ops] == [
        *[("collectives", 16), ("dispatch", 2000), ("combine", 8000)],
        *[("dispatch", 2000), ("combine", 8000)],
    ]


def test_a_message_whose_size_differs_by_rank_has_no_size(tmp_path):
    for rank in (0, 1):
        kineto = Kineto(rank, 2)
        kineto.step(1, 1000, 900)
        kineto.collective("all_to_allv", 1050, 100 * (rank + 1), group="ep", ranks=[0, 1])
        kineto.write(tmp_path / f"rank{rank}.pt.trace.json")
    trace = open_run(tmp_path)
    ran = trace.hlo_ops[trace.hlo_ops["opcode"] == "all-to-all"]
    assert ran["size_bytes"].tolist() == [-1]


def test_groups_of_one_name_are_apart_by_their_ranks(tmp_path):
    """A counter names groups: "2" is [0, 1] on two ranks and [2, 3] on the others."""
    for rank in range(4):
        kineto = Kineto(rank, 4)
        kineto.step(1, 1000, 900)
        ranks = [0, 1] if rank < 2 else [2, 3]
        kineto.collective("all_to_allv", 1050, 100, group="2", ranks=ranks)
        kineto.write(tmp_path / f"rank{rank}.pt.trace.json")
    trace = open_run(tmp_path)
    ran = trace.hlo_ops[trace.hlo_ops["opcode"] == "all-to-all"]
    assert sorted(ran["replica_groups"]) == ["{{0,1}}", "{{2,3}}"]


def test_inputs_of_one_shape_are_read_each(tmp_path):
    """A bf16 product of 1024 x 1024 matrices reads two and writes one: 3 * 2 MiB."""
    kineto = Kineto()
    kineto.step(1, 0, 1000)
    op = kineto.op("aten::mm", 20, 20, inputs=[([1024, 1024], "c10::BFloat16")] * 2)
    kineto.kernel("mm", 30, 5, launch=25, op=op)
    costs = costs_of(opened(kineto, tmp_path)).pandas()
    assert costs["bytes"].tolist() == [3 * 2 * 2**20]
    assert costs["flops"].tolist() == [2 * 1024**3]


def test_ranks_whose_ops_differ_share_the_collective(tmp_path):
    """An op that one rank alone has is its own; the k-th call of a group is one on all."""
    message = {"Collective name": "allreduce", "Process Group Name": "3", "dtype": "Float"}
    message |= {"In msg nelems": 64, "Out msg nelems": 64, "Group size": 2}
    message |= {"Process Group Ranks": "[0, 1]"}
    for rank in (0, 1):
        kineto = Kineto(rank, 2)
        for step in (1, 2):
            kineto.step(step, 1000 * step, 900)
            if rank:
                op = kineto.op("aten::mul", 1000 * step + 5, 5)
                kineto.kernel("mul", 1000 * step + 8, 1, launch=1000 * step + 6, op=op)
            op = kineto.op("record_param_comms", 1000 * step + 20, 20, more=message)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            kineto.kernel(name, 1000 * step + 30, 5, launch=1000 * step + 25, op=op)
        kineto.write(tmp_path / f"rank{rank}.pt.trace.json")
    trace = open_run(tmp_path)
    assert trace.modules["name"].tolist() == ["PyTorch"]
    ran = trace.hlo_ops[trace.hlo_ops["opcode"] != "stand-in"]
    assert sorted(ran["opcode"]) == ["all-reduce", "map"]
    assert (trace.events["instruction"] >= 0).all()
    assert ran["replica_groups"][ran["opcode"] == "all-reduce"].tolist() == ["{{0,1}}"]
