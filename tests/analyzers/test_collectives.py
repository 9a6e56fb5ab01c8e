import dataclasses

import pytest
from builders.work import MODULE, hlo, kernel, traced

from moeprof.analyzers.communication.bandwidth import bus_factor
from moeprof.analyzers.communication.sites import axes_of, groups_of, sites_of
from moeprof.analyzers.questions.collectives import collectives
from moeprof.hlo.instruction import parse_groups
from moeprof.tables.trace import DEVICES, MODULES, MeshAxis

ALL_8 = "{{0,1,2,3,4,5,6,7}}"
ROWS_BYTES = 32_768 * 7168 * 2  # 469,762,048
MS = 1_000_000


def exchange(opcode="all-to-all", ms=14.0, size=ROWS_BYTES, devices=8, more=(), **facts):
    """One call per device of 8, all at once."""
    ops = (
        hlo("rows", "parameter", size_bytes=size, shape="bf16[32768,7168]"),
        hlo("sent", opcode, "rows", replica_groups=ALL_8, **facts),
        *more,
    )
    work = [kernel("sent", 0, int(ms * MS), device=device) for device in range(devices)]
    return traced(work, ops)


def only_row(trace, link=450e9):
    return collectives(trace, link_bytes_per_s=link).table.iloc[0]


def test_a_slow_all_to_all_inside_a_machine_is_flagged():
    row = only_row(exchange())
    assert row["bytes"] == 469_762_048
    assert row["bus_gb_per_s"] == pytest.approx(29.36, abs=0.005)  # 7/8 of it in 14 ms
    assert row["link_share"] == pytest.approx(0.0652, abs=0.0001)
    assert row["flag"] == "slow: 6.5 % of the link"


def test_an_all_to_all_near_the_speed_of_the_link_is_not_flagged():
    row = only_row(exchange(ms=1.2))
    assert row["link_share"] == pytest.approx(0.761, abs=0.001)  # 342.5 of 450 GB/s
    assert row["flag"] == ""


def test_a_small_message_is_slow_by_its_latency_and_not_flagged():
    assert only_row(exchange(ms=0.03, size=1024))["flag"] == ""


def test_bytes_of_a_ragged_exchange_are_unknown_but_bounded():
    analysis = collectives(exchange("ragged-all-to-all"), link_bytes_per_s=450e9)
    row = analysis.table.iloc[0]
    assert row[["bytes", "bus_gb_per_s"]].isna().all()
    assert row["bound_bytes"] == 469_762_048
    assert row["flag"] == "slow: at most 6.5 % of the link"
    assert "sent: bytes unknown (data dependent), upper bound 448.0 MiB" in analysis.notes


def test_the_link_of_a_known_model_needs_not_be_given():
    trace = exchange()
    devices = trace.devices.assign(model="NVIDIA H100 80GB HBM3").astype({"model": "str"})
    row = only_row(dataclasses.replace(trace, devices=DEVICES.check(devices)), link=None)
    assert row["link_share"] == pytest.approx(0.0652, abs=0.0001)


def test_without_a_known_link_the_fastest_collective_of_the_trace_is_the_measure():
    more = (hlo("sum", "all-reduce", "rows", replica_groups=ALL_8),)
    trace = exchange("ragged-all-to-all", more=more)
    fast = [kernel("sum", 20 * MS, 2 * MS, device=d) for d in range(8)]
    slow = [kernel("sent", 0, 14 * MS, device=d) for d in range(8)]
    ops = trace.hlo_ops.to_dict("records")
    table = collectives(traced([*slow, *fast], ops)).table.set_index("op")
    # the sum: 7/4 of its bytes in 2 ms, 411.0 GB/s; the exchange: at most 29.36 GB/s
    assert table["bus_gb_per_s"]["sum"] == pytest.approx(411.04, abs=0.01)
    assert table["flag"].to_dict() == {"sent": "slow: at most 7.1 % of the fastest here", "sum": ""}


@pytest.mark.parametrize(
    ("opcode", "factor"),
    [
        ("all-reduce", 1.75),
        ("all-gather", 0.875),
        ("reduce-scatter", 0.875),
        ("all-to-all", 0.875),
        ("collective-broadcast", 1.0),
        ("collective-permute", 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(opcode, factor):
    assert bus_factor(opcode, 8) == factor


@pytest.mark.parametrize(
    ("opcode", "bus"),
    [
        ("all-reduce", 187.97),
        ("all-gather", 93.99),
        ("all-to-all", 93.99),
        ("reduce-scatter", 93.99),
    ],
)
def test_bus_bandwidth_of_a_gibibyte_in_ten_milliseconds(opcode, bus):
    """1 GiB on 8 ranks in 9.995 ms: 107.4 GB/s by the algorithm, times 7/4 or 7/8."""
    put_in = 2**30 // 8 if opcode == "all-gather" else 2**30
    row = only_row(exchange(opcode, ms=9.996, size=put_in))
    assert row["bytes"] == 2**30
    assert row["bus_gb_per_s"] == pytest.approx(bus, abs=0.02)


def test_groups_are_read_as_hlo_writes_them():
    assert groups_of(parse_groups("{{0,4},{1,5}}"), 8) == ((0, 4), (1, 5))
    assert groups_of(parse_groups(""), 3) == groups_of(parse_groups("{}"), 3) == ((0, 1, 2),)
    in_pairs = ((0, 4), (1, 5), (2, 6), (3, 7))  # 0 to 7 as [2, 4], read by its columns
    assert groups_of(parse_groups("[4,2]<=[2,4]T(1,0)"), 8) == in_pairs
    assert groups_of(parse_groups("mesh['x'=8] {'x'}"), 8) == ()  # in a form that is not known


def with_program(trace, partitions, replicas=1):
    """`trace` with what its one program says of the devices that run it."""
    numbers = {c.name: -1 if c.kind == "int64" else "" for c in MODULES.columns}
    known = {"module": MODULE, "partitions": partitions, "replicas": replicas}
    row = {**numbers, **known, "is_scheduled": True}
    return dataclasses.replace(trace, modules=MODULES.frame([row]))


def one_process(groups):
    """A sum over 64 MiB on 4 of 8 devices, which start within 3 µs and end together."""
    ops = (
        hlo("rows", "parameter", size_bytes=64 << 20, shape="bf16[33554432]"),
        hlo("sum", "all-reduce", "rows", replica_groups=groups),
    )
    work = [kernel("sum", 1000 * d, 5_300_000 - 1000 * d, device=d) for d in range(4)]
    return traced(work, ops)


NOT_KNOWN = ["wait_ns", "transfer_ns", "bus_gb_per_s", "algorithm_gb_per_s", "link_share"]


@pytest.mark.parametrize("groups", ["", ALL_8], ids=["all", "named"])
def test_of_a_group_that_lacks_devices_neither_wait_nor_bandwidth_is_known(groups):
    analysis = collectives(with_program(one_process(groups), 8), link_bytes_per_s=450e9)
    row = analysis.table.iloc[0]
    assert (row["group_size"], row["bytes"], row["per_step_ns"]) == (8, 64 << 20, 5_298_500.0)
    assert row[NOT_KNOWN].isna().all()
    assert row["flag"] == ""
    said = [note for note in analysis.notes if note.startswith("sum: groups with devices that")]
    assert len(said) == 1


def test_replicas_of_a_program_take_part_too():
    row = only_row(with_program(one_process(""), 2, 2))
    assert (row["group_size"], row["transfer_ns"]) == (4, 5_297_000.0)


def test_where_a_process_is_missing_and_no_program_tells_it_the_group_is_unknown():
    trace = one_process("")
    meta = dataclasses.replace(trace.meta, missing_processes=("process 1",))
    analysis = collectives(dataclasses.replace(trace, meta=meta), link_bytes_per_s=450e9)
    row = analysis.table.iloc[0]
    assert row["group_size"] == 0
    assert row[NOT_KNOWN].isna().all()
    assert any("sum: how many devices take part is not known" in note for note in analysis.notes)


def test_a_gather_of_an_unknown_number_of_devices_has_unknown_bytes():
    trace = traced((), (hlo("x", "parameter", size_bytes=8), hlo("g", "all-gather", "x")))
    (site,) = sites_of(trace, range(2), {})
    assert (site.bytes, site.bytes_bound, site.groups) == (-1, -1, ())


def sites(*rows):
    return sites_of(traced((), rows), range(len(rows)), {MODULE: 4})


def test_a_wrapped_collective_has_the_operands_of_the_inner_one():
    (start,) = sites(
        hlo("p", "parameter", computation="inside", size_bytes=24),
        hlo("pair", "async-start", "x", called="inside"),
        hlo("pair-done", "async-done", "pair"),
        hlo("sent", "all-to-all", "p", computation="inside", replica_groups="{{0,1},{2,3}}"),
    )[:1]
    assert (start.op, start.opcode, start.bytes, start.group_size) == ("pair", "all-to-all", 24, 2)


def test_the_bytes_of_a_tuple_are_those_of_all_its_operands():
    (site,) = sites(
        hlo("a", "parameter", size_bytes=8, shape="f8e4m3fn[8]"),
        hlo("b", "parameter", size_bytes=16, shape="f32[4]"),
        hlo("gathered", "all-gather-start", "a b"),
    )
    assert site.bytes == 24 * 4


def test_a_dtype_without_a_known_size_leaves_the_bytes_unknown():
    (site,) = sites(
        hlo("a", "parameter", size_bytes=0, shape="type99[8]"), hlo("sum", "all-reduce", "a")
    )
    assert site.bytes == site.bytes_bound == -1


def test_a_token_exchange_by_custom_call_is_a_collective_of_unknown_size():
    (site,) = sites(
        hlo("a", "parameter", size_bytes=8),
        hlo("sent", "custom-call", "a", custom_call_target="moe_dispatch_inproc"),
    )
    assert (site.opcode, site.bytes) == ("custom-call", -1)


def test_barriers_around_a_kernel_belong_to_its_call():
    ops = (hlo("r", "ragged-all-to-all", "x"), hlo("x", "parameter", size_bytes=8))
    work = [
        kernel("r", 100 * n + at, length, name=name)
        for n in range(2)
        for at, length, name in ((0, 5, "Barrier"), (6, 50, "RaggedAllToAll"), (57, 3, "Barrier"))
    ]
    row = only_row(traced(work, ops, {0: (0, 200)}))
    assert row["calls"] == 2.0
    assert row["transfer_ns"] == 60.0
    assert row["per_step_ns"] == 2 * (5 + 50 + 3)


def test_groups_that_exchange_tokens_and_groups_that_gather_weights_are_told_apart():
    scope = "jit(s)/jvp()/moe/dispatch/"
    ops = (
        hlo("w", "parameter", size_bytes=8, shape="f32[2]"),
        hlo("x", "multiply", "w w", size_bytes=8, shape="f32[2]", op_name=f"{scope}mul"),
        hlo("tokens", "all-to-all", "x", replica_groups="{{0,1},{2,3}}", op_name=f"{scope}all"),
        hlo("weights", "all-gather", "w", replica_groups="{{0,2},{1,3}}"),
    )
    work = [
        kernel(op, at, 5, device=device)
        for device in range(4)
        for op, at in (("tokens", 0), ("weights", 9))
    ]
    table = collectives(traced(work, ops)).table.set_index("op")
    assert table["axis"].to_dict() == {"tokens": "tokens", "weights": "weights"}
    assert table["groups"]["weights"] == "{0,2} {1,3}"


MESH = (MeshAxis("data", 1), MeshAxis("fsdp", 2), MeshAxis("tensor", 2), MeshAxis("expert", 2))


@pytest.mark.parametrize(
    ("groups", "axis"),
    [
        (((0, 1), (2, 3), (4, 5), (6, 7)), "expert"),
        (((0, 4), (5, 1), (2, 6), (3, 7)), "fsdp"),
        (((0, 1, 4, 5), (2, 3, 6, 7)), "fsdp × expert"),
        ((tuple(range(8)),), "fsdp × tensor × expert"),
        (((0, 3), (1, 2), (4, 7), (5, 6)), ""),  # no axes of this mesh
        (((0, 1), (2, 3)), ""),  # a program on half of the devices
        ((tuple(range(16)),), ""),
        ((), ""),
    ],
)
def test_groups_are_named_by_the_axes_of_the_mesh_that_they_lie_along(groups, axis):
    assert axes_of(groups, MESH) == axis
    assert axes_of(groups, ()) == ""


def test_the_axis_is_the_mesh_s_where_the_run_recorded_it():
    trace = exchange()
    assert only_row(trace)["axis"] == ""
    meta = dataclasses.replace(trace.meta, mesh=(MeshAxis("fsdp", 1), MeshAxis("expert", 8)))
    assert only_row(dataclasses.replace(trace, meta=meta))["axis"] == "expert"


def test_a_kernel_without_an_op_is_listed_by_its_name():
    name = "ncclDevKernel_AllGather_RING_LL"
    analysis = collectives(traced([kernel("", 10 * n, 5, name=name) for n in range(20)]))
    row = analysis.table.iloc[0]
    assert (row["op"], row["opcode"], row["calls"], row["per_step_ns"]) == (
        name,
        "all-gather",
        20.0,
        100.0,
    )
    assert "call sites without known bytes, as no op or shape tells them: 1" in analysis.notes


@pytest.mark.parametrize(
    ("name", "opcode"),
    [
        ("ncclDevKernel_AllToAll_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-to-all"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send-recv"),
        ("mscclpp::collective::allgatherFullmesh2", "all-gather"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]", "not known"),
        ("EpDispatchIntraNodeKernel_bf16.kd", "not known"),
        ("MemcpyP2P", "peer copy"),
    ],
)
def test_the_name_of_a_kernel_without_an_op_says_what_it_does_or_nothing(name, opcode):
    analysis = collectives(traced([kernel("", 10 * n, 5, name=name) for n in range(4)]))
    assert analysis.table["opcode"].tolist() == [opcode]


def test_a_trace_without_collectives_says_so():
    analysis = collectives(traced([kernel("dot", 0, 5)], (hlo("dot", "dot"),)))
    assert analysis.table.empty
    assert analysis.notes == ("none in this trace: no collective",)


def test_a_receive_brings_what_its_result_holds():
    """Its operand is a token; of (data, context, token) 64 bytes are data, 4 are the context."""
    (known, unknown) = sites(
        hlo("token", "after-all", shape="token[]"),
        hlo("r", "recv", "token", shape="(f32[16],u32[],token[])", size_bytes=68),
        hlo("s", "recv", "token", shape="(type99[16],u32[],token[])", size_bytes=4),
    )
    assert (known.bytes, known.bytes_bound) == (64, 64)
    assert (unknown.bytes, unknown.bytes_bound) == (-1, -1)


def test_a_guessed_op_gives_a_kernel_no_bytes_and_no_component():
    ops = (
        hlo("x", "parameter", size_bytes=1 << 20, shape="f32[262144]"),
        hlo("g", "all-gather", "x", replica_groups="{{0,1}}"),
    )
    name = "ncclDevKernel_AllGather_RING_LL"
    work = [kernel("g", 0, 9, name=name, device=device, confidence=0.3) for device in range(2)]
    row = only_row(traced(work, ops))
    assert (row["op"], row["opcode"], row["component"]) == (name, "all-gather", "unattributed")
    assert row[["bytes", "bound_bytes", "bus_gb_per_s"]].isna().all()
    assert row["per_step_ns"] == 9.0


def test_a_call_is_one_whichever_protocol_its_kernel_was_built_for():
    ops = (
        hlo("x", "parameter", size_bytes=8, shape="f32[2]"),
        hlo("g", "all-gather", "x", replica_groups="{{0,1}}"),
    )
    kinds = ("RING_LL", "RING_LL(ncclDevKernelArgsStorage<4096ul>)", "RING_SIMPLE")
    work = [
        kernel("g", 1000 * n, 300, name=f"ncclDevKernel_AllGather_{kind}", device=device)
        for device in range(2)
        for n, kind in enumerate(kinds)
    ]
    row = only_row(traced(work, ops))
    assert (row["calls"], row["transfer_ns"], row["per_step_ns"]) == (3.0, 300.0, 900.0)


def test_an_asynchronous_call_lasts_from_the_start_of_its_start_to_the_end_of_its_done():
    """Start [0, 10), done [80, 100), 2 calls a step: 100 ns each, of which 30 block the core."""
    groups = {"replica_groups": "{{0,1}}"}
    ops = (
        hlo("x", "parameter", size_bytes=1000, shape="f32[250]"),
        hlo("g", "all-gather-start", "x", async_pair="gd", async_opcode="all-gather", **groups),
        hlo("gd", "all-gather-done", "g", async_pair="g", async_opcode="all-gather"),
    )
    work = [
        kernel(op, 1000 * call + at, length, kind="op", device=device)
        for device in range(2)
        for call in range(2)
        for op, at, length in (("g", 0, 10), ("gd", 80, 20))
    ]
    row = only_row(traced(work, ops))
    assert (row["op"], row["calls"], row["per_step_ns"]) == ("g", 2.0, 60.0)
    assert row["transfer_ns"] == 100.0
    assert row["algorithm_gb_per_s"] == 20.0  # 2 · 1000 bytes in 100 ns
