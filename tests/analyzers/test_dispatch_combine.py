import dataclasses

import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.activity.account import exposed_ns
from moeprof.analyzers.communication.sites import groups_of_call
from moeprof.analyzers.questions.dispatch_combine import dispatch_combine
from moeprof.analyzers.questions.timeline import timeline
from moeprof.tables.routing import RECEIVED, ROUTING

IN = "jit(s)/jvp()/moe/"
US = 1000
PAIRS = "dense<[0, 1]> : tensor<2xi64>"


def exchange(opcode="all-to-all", routed=None, work=None, **facts):
    """Two ranks send 8 rows of 512 bf16, 8 KiB, to each other; rank 1 comes 4 µs late."""
    ops = (
        hlo("x", "parameter", size_bytes=8192, shape="bf16[8,512]"),
        hlo("rows", "multiply", "x x", size_bytes=8192, shape="bf16[8,512]"),
        hlo(
            "sent",
            opcode,
            "rows",
            size_bytes=8192,
            op_name=f"{IN}dispatch/send",
            **{"shape": "bf16[8,512]", "replica_groups": "{{0,1}}", **facts},
        ),
        hlo("dot", "dot", "x x", op_name="jit(s)/norm/dot"),
    )
    made = [
        kernel("sent", 0, 10 * US, device=0),
        kernel("sent", 4 * US, 6 * US, device=1),
    ]
    trace = traced(made if work is None else work, ops)
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    received = [
        {"step": 0, "layer": 0, "group": 0, "rank": rank, "rows": rows}
        for rank, rows in enumerate(routed or ())
    ]
    return dataclasses.replace(
        trace, meta=meta, received=RECEIVED.frame(received), routing=ROUTING.frame()
    )


def only_row(trace):
    return dispatch_combine(trace, link_bytes_per_s=1e9).table.iloc[0]


def values(analysis):
    return {m.metric: m.value for m in analysis.headline}


def test_a_call_is_divided_into_waiting_and_transfer_per_device_and_step():
    row = only_row(exchange())
    assert row[["direction", "phase", "form"]].tolist() == ["dispatch", "forward", "all-to-all"]
    assert row["per_step_ns"] == 8 * US  # (10 + 6) µs on two devices
    assert row["wait_ns"] == 2 * US  # 4 µs on one of two
    assert (row["transfer_ns"], row["skew_ns"]) == (6 * US, 4 * US)
    assert (row["last_rank"], row["last_share"], row["group_size"]) == (1, 1.0, 2)
    assert values(dispatch_combine(exchange()))["exchange_wait_share"] == 0.25


def test_padded_rows_are_sent_whether_used_or_not():
    row = only_row(exchange())
    assert (row["bytes"], row["bound_bytes"]) == (8192, 8192)
    assert row["algorithm_gb_per_s"] == pytest.approx(8192 / 6000)
    assert row["bus_gb_per_s"] == pytest.approx(8192 / 6000 / 2)  # one of two halves leaves
    assert row["link_share"] == pytest.approx(8192 / 6000 / 2)


def test_bandwidth_counts_the_rows_that_held_tokens():
    row = only_row(exchange(routed=(2, 6)))
    assert row["used_bytes"] == 4 * 1024  # mean of 2 and 6 rows
    assert row["bus_gb_per_s"] == pytest.approx(4096 / 6000 / 2)


def test_a_ragged_exchange_without_recorded_routing_has_a_bound_and_no_bandwidth():
    analysis = dispatch_combine(exchange("ragged-all-to-all"))
    row = analysis.table.iloc[0]
    assert row[["bytes", "used_bytes", "bus_gb_per_s"]].isna().all()
    assert row["bound_bytes"] == 8192
    assert (
        "sent: bytes unknown (data dependent), upper bound 8.000 KiB, at most 1.4 GB/s by the "
        "algorithm" in analysis.notes
    )
    assert values(analysis)["worst_bus_bandwidth"] is None


def test_a_ragged_exchange_with_recorded_routing_has_both():
    row = only_row(exchange("ragged-all-to-all", routed=(2, 6)))
    assert (row["form"], row["used_bytes"]) == ("ragged all-to-all", 4096)
    assert row["bus_gb_per_s"] == pytest.approx(4096 / 6000 / 2)


def test_a_custom_call_names_its_groups_itself():
    config = f"{{ep_groups = {PAIRS}, ep_size = 2 : i64}}"
    facts = {"custom_call_target": "moeprof_moe_dispatch_inproc", "backend_config": config}
    row = only_row(exchange("custom-call", routed=(2, 6), replica_groups="", **facts))
    assert (row["form"], row["group_size"], row["wait_ns"]) == ("custom call", 2, 2 * US)
    assert (row["bound_bytes"], row["used_bytes"]) == (8192, 4096)
    assert row["bus_gb_per_s"] == pytest.approx(4096 / 6000 / 2)


def test_groups_of_a_call_are_believed_where_they_name_each_device_once():
    long = "".join(n.to_bytes(8, "little").hex() for n in (0, 2, 1, 3))
    said = "{{ep_groups = dense<{}> : tensor<4xi64>, ep_size = {} : i64}}"
    assert groups_of_call(said.format("[0, 2, 1, 3]", 2), 4) == ((0, 2), (1, 3))
    assert groups_of_call(said.format(f'"0x{long.upper()}"', 4), 4) == ((0, 2, 1, 3),)
    assert groups_of_call(said.format("[0, 1, 2, 3]", 4), 8) == ()  # of one process of two
    assert groups_of_call(said.format("[0, 1, 2, 3]", 3), 4) == ()
    assert groups_of_call("{timeout_ms = 3 : i64}", 4) == ()


def test_where_steps_overlap_exposed_time_counts_once():
    """The exchange lasts 6 µs, 2 of them in both steps: it cannot be exposed for 8."""
    work = [kernel("sent", 8 * US, 6 * US, step=1), kernel("dot", 14 * US, US, step=1)]
    ops = (hlo("x", "parameter"), hlo("sent", "all-to-all", "x"), hlo("dot", "dot", "x x"))
    steps = {0: (0, 10 * US), 1: (8 * US, 10 * US)}
    assert exposed_ns(traced(work, ops, steps)).tolist() == [6 * US, 0]


def test_exposed_time_of_all_exchanges_is_that_of_the_timeline():
    """Dot [2, 5) and [8, 12) µs: of the exchange [0, 10), 5 µs are exposed; of [4, 10), 5."""
    work = [
        kernel("sent", 0, 10 * US),
        kernel("dot", 2 * US, 3 * US, line="2"),
        kernel("dot", 8 * US, 4 * US, line="2"),
        kernel("sent", 4 * US, 6 * US, device=1),
        kernel("dot", 4 * US, 1 * US, device=1, line="2"),
    ]
    trace = exchange(work=work)
    assert only_row(trace)["exposed_ns"] == (5 * US + 5 * US) / 2
    assert timeline(trace).table["exposed_communication_ns"].tolist() == [5 * US, 5 * US]


def test_an_exchange_of_counts_is_told_from_one_of_tokens():
    analysis = dispatch_combine(exchange(shape="s32[2]"))
    assert analysis.table["form"].tolist() == ["all-to-all of integers"]
    assert values(analysis)["best_bus_bandwidth"] is None


def test_a_kernel_of_an_exchange_library_counts_without_a_program():
    name = "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>"
    analysis = dispatch_combine(traced([kernel("", 0, 7 * US, name=name)]))
    row = analysis.table.iloc[0]
    assert row[["direction", "form", "op"]].tolist() == ["combine", "kernel only", name]
    assert f"{name}: bytes unknown (data dependent), no upper bound known" in analysis.notes
    assert row["per_step_ns"] == 7 * US


def test_a_trace_without_token_exchanges_says_so():
    analysis = dispatch_combine(traced([kernel("dot", 0, 5)], (hlo("dot", "dot"),)))
    assert analysis.table.empty
    assert analysis.notes == ("none in this trace: no token exchange of a MoE layer",)
    assert values(analysis)["exchange_time"] is None


def test_ragged_exchanges_without_a_program_have_no_direction_and_neither_way_a_time():
    trace = traced([kernel("", 0, 500, name="ragged-all-to-all.1", device=d) for d in (0, 1)])
    found = dispatch_combine(trace)
    assert found.table["direction"].tolist() == ["not known"]
    figures = {metric.metric: metric.value for metric in found.headline}
    assert figures["exchange_time"] == 500
    assert figures["dispatch_time"] is figures["combine_time"] is None
