import dataclasses

import pandas as pd
import pytest
from builders.hlo import LogicalBuffer, computation, hlo_proto, op
from builders.programs import call, parameter
from builders.programs import program as made_of
from builders.trace import trace_of
from builders.xspace import thunk

from moeprof.analyzers.buffers import (
    BufferUse,
    buffer_uses,
    capped_bytes,
    copies_alive,
    filled_by_step,
)
from moeprof.analyzers.questions.receive_buffers import receive_buffers
from moeprof.tables.routing import RECEIVED, ROUTING
from moeprof.tables.trace import BUFFERS

IN = "jit(s)/jvp()/moe/"
# 4 ranks × 16 tokens; ids and weights of top-2 come along
RECEIVED_PARTS = "(bf16[64,8], s32[64,2], f32[64,2])"
DEEPEP = hlo_proto(
    computation(
        "main",
        op("x", "parameter", "bf16[16,8]"),
        op(
            "recv",
            "custom-call",
            "(bf16[64,8], s32[64,2], f32[64,2])",
            "x",
            target="moeprof_moe_dispatch_inproc",
            op_name=IN + "dispatch/c",
        ),
        op("rows", "gather", "bf16[128,8]", "recv", op_name=IN + "local_permute/gather"),
        op(
            "up",
            "custom-call",
            "bf16[128,6]",
            "rows",
            target="moeprof_grouped_gemm",
            op_name=IN + "experts/c",
        ),
        op("summed", "reduce", "bf16[64,8]", "up", op_name=IN + "unpermute/reduce"),
        op(
            "out",
            "custom-call",
            "bf16[16,8]",
            "summed",
            target="moe_combine",
            op_name=IN + "combine/c",
        ),
    ),
    buffers=[LogicalBuffer(1, "recv", 1024, allocation=5)],
)
PADDED = hlo_proto(
    computation(
        "main",
        op("counts", "all-to-all", "(s32[4], s32[4])", op_name=IN + "dispatch/all_to_all"),
        op("sent", "all-to-all", "(f32[4,10,8], f32[4,10,8])", op_name=IN + "dispatch/all_to_all"),
        op("back", "all-to-all", "(f32[4,10,8], f32[4,10,8])", op_name=IN + "combine/all_to_all"),
        op("all", "all-gather", "f32[80,8]", op_name=IN + "dispatch/all_gather"),
        op("psum", "all-reduce", "f32[80,8]", op_name="jit(s)/grad_sync/psum"),
    )
)


def run(tmp_path, program, *names):
    return trace_of(
        tmp_path,
        program,
        *(
            thunk(n, 100 * i + 10 * k + 1, 5, run_id=i)
            for i in range(3)
            for k, n in enumerate(names)
        ),
    )


def with_routing(trace, rows, tokens, *, groups=1, is_numbered=True):
    """Rows per rank of layer 0, tokens per expert; two experts per rank; all three steps."""
    received = [
        {"step": s, "layer": 0, "group": g, "rank": r, "rows": n}
        for s in range(3)
        for g in range(groups)
        for r, n in enumerate(rows)
    ]
    routing = [
        {"step": s, "layer": 0, "expert": e, "rank": e // 2, "tokens": n}
        for s in range(3)
        for e, n in enumerate(tokens)
    ]
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=is_numbered)
    return dataclasses.replace(
        trace, meta=meta, received=RECEIVED.frame(received), routing=ROUTING.frame(routing)
    )


def test_worst_case_rows_are_those_of_the_program(tmp_path):
    found = receive_buffers(run(tmp_path, DEEPEP, "recv", "up", "out"))
    table = found.table.set_index("role")
    assert table["worst_rows"].to_dict() == {"fan_out": 128, "dispatch": 64, "combine": 64}
    assert table["worst_bytes"].to_dict() == {"fan_out": 2048, "dispatch": 1024, "combine": 1024}
    assert table["op"].to_dict() == {"fan_out": "up", "dispatch": "recv", "combine": "out"}
    assert table["allocation"].to_dict() == {"fan_out": -1, "dispatch": 5, "combine": -1}
    assert set(table["calls"]) == {1.0}


def test_a_buffer_that_two_products_read_is_one_row(tmp_path):
    rows = op("rows", "sort", "bf16[128,8]")
    products = (
        op(name, "custom-call", "bf16[128,6]", "rows", target="moeprof_grouped_gemm")
        for name in ("gate", "up")
    )
    program = hlo_proto(computation("main", rows, *products))
    table = receive_buffers(run(tmp_path, program, "gate", "up")).table
    assert table[["op", "worst_rows"]].to_numpy().tolist() == [["gate", 128]]


def test_without_recorded_routing_no_use_is_printed(tmp_path):
    found = receive_buffers(run(tmp_path, DEEPEP, "recv"))
    assert found.table[["used_rows", "used_bytes", "utilisation"]].isna().all(axis=None)
    assert {m.metric: m.value for m in found.headline}["utilisation"] is None
    assert "rows really used are not known" in found.notes[0]


def test_the_choice_of_experts_alone_fills_the_fan_out(tmp_path):
    """Two ranks on two devices: what each got is what its experts were chosen for."""
    trace = with_routing(run(tmp_path, DEEPEP, "recv"), (), (10, 10, 40, 4))
    meta = dataclasses.replace(trace.meta, expected_devices=2)
    found = receive_buffers(dataclasses.replace(trace, meta=meta))
    used = found.table.set_index("role")["used_rows"]
    assert used["fan_out"] == 32.0
    assert used.drop("fan_out").isna().all()
    assert "rows of receive buffers really used are not known" in found.notes[0]
    assert "used rows of products are the pairs" in found.notes[0]


def test_tokens_fill_the_dispatch_and_pairs_the_fan_out(tmp_path):
    trace = with_routing(run(tmp_path, DEEPEP, "recv"), (16, 48), (10, 10, 40, 4))
    table = receive_buffers(trace).table.set_index("role")
    assert table["used_rows"].to_dict() == {"fan_out": 32.0, "dispatch": 32.0, "combine": 32.0}
    assert table["most_used_rows"].to_dict() == {"fan_out": 44.0, "dispatch": 48.0, "combine": 48.0}
    assert table["utilisation"]["dispatch"] == 0.5  # 32 of 64
    assert table["utilisation"]["fan_out"] == 0.25  # 32 of 128
    assert table["used_bytes"]["dispatch"] == 512.0


def test_the_fan_out_holds_pairs_also_where_the_use_of_the_dispatch_is_not_known(tmp_path):
    """100 rows were recorded, and the dispatch has room for 64: those are not its own."""
    trace = with_routing(run(tmp_path, DEEPEP, "recv"), (16, 100), (10, 10, 40, 4))
    table = receive_buffers(trace).table.set_index("role")
    assert table["used_rows"].isna().to_dict() == {
        "fan_out": False, "dispatch": True, "combine": True,
    }  # fmt: skip


def test_bytes_by_step_are_of_the_counts_that_fit_each_buffer(tmp_path):
    """Rows of 16 bytes: 32 tokens are dispatched and combined, 32 pairs stand in the fan-out.

    In step 1 no token comes: the fan-out, of which the counts are pairs, still has its 32.
    """
    trace = with_routing(run(tmp_path, DEEPEP, "recv"), (16, 48), (10, 10, 40, 4))
    rows = trace.received["rows"].where(trace.received["step"] != 1, 0)
    table = filled_by_step(
        dataclasses.replace(trace, received=trace.received.assign(rows=rows))
    ).pandas()
    assert table["used_bytes"].to_dict() == {0: 3 * 512.0, 1: 512.0, 2: 3 * 512.0}
    assert set(table["worst_bytes"]) == {2048 + 1024 + 1024}
    assert table["utilisation"].tolist() == [0.375, 0.125, 0.375]


def test_a_fan_out_behind_a_dispatch_whose_use_is_not_known_holds_pairs(tmp_path):
    """65 rows fit into no buffer of tokens; the 32 pairs of a rank fit into the fan-out of 128."""
    trace = with_routing(run(tmp_path, DEEPEP, "recv"), (16, 65), (10, 10, 40, 4))
    table = filled_by_step(trace).pandas()
    assert table["used_bytes"].tolist() == [32 * 16.0] * 3
    assert set(table["worst_bytes"]) == {2048}
    headline = {m.metric: m.value for m in receive_buffers(trace).headline}
    assert table["utilisation"].mean() == headline["utilisation"] == 0.25


def test_bytes_by_step_need_the_steps_that_are_shown(tmp_path):
    given = run(tmp_path, DEEPEP, "recv"), (16, 48), (10, 10, 40, 4)
    assert not len(filled_by_step(given[0]))
    assert not len(filled_by_step(with_routing(*given, is_numbered=False)))


def test_parts_of_a_tuple_all_to_all_are_one_buffer(tmp_path):
    trace = with_routing(run(tmp_path, PADDED, "sent"), (20, 60), (20, 0, 60, 0))
    found = receive_buffers(trace)
    table = found.table.set_index("op")
    assert table["worst_rows"].to_dict() == {"sent": 80, "back": 80, "all": 80}
    assert table["worst_bytes"]["sent"] == 80 * 8 * 4
    assert table["utilisation"]["sent"] == 0.5  # (20 + 60) / 2 of 80
    assert table["role"].to_dict() == {"sent": "exchange", "back": "exchange", "all": "gather"}


def test_the_way_back_has_a_mean_but_no_fullest_rank(tmp_path):
    trace = with_routing(run(tmp_path, PADDED, "sent"), (20, 60), (20, 0, 60, 0))
    back = receive_buffers(trace).table.set_index("op").loc["back"]
    assert back["used_rows"] == 40.0
    assert back.isna()["most_used_rows"]


def test_the_use_of_a_gather_is_not_known(tmp_path):
    trace = with_routing(run(tmp_path, PADDED, "sent"), (20, 60), (20, 0, 60, 0))
    assert receive_buffers(trace).table.set_index("op").isna().loc["all", "used_rows"]


def test_more_rows_than_the_buffer_holds_are_not_believed(tmp_path):
    trace = with_routing(run(tmp_path, PADDED, "sent"), (20, 81), (20, 0, 81, 0))
    assert receive_buffers(trace).table["used_rows"].isna().all()


def test_routing_of_other_steps_is_said_to_be(tmp_path):
    trace = with_routing(run(tmp_path, PADDED, "sent"), (20, 60), (20, 0, 60, 0))
    shifted = trace.received.assign(step=trace.received["step"] + 100)
    notes = receive_buffers(dataclasses.replace(trace, received=shifted)).notes
    assert "routing was recorded for other steps than those of the trace" in notes


def test_steps_without_the_scripts_numbers_take_all_recorded_steps(tmp_path):
    trace = with_routing(run(tmp_path, PADDED, "sent"), (20, 60), (20, 0, 60, 0), is_numbered=False)
    received = trace.received.assign(
        rows=trace.received["rows"].where(trace.received["step"] > 0, 0)
    )
    found = receive_buffers(
        dataclasses.replace(trace, received=received.assign(step=received["step"] + 2))
    )
    assert found.table.set_index("op")["used_rows"]["sent"] == pytest.approx(80 / 3)  # 0, 40, 40
    assert any("are taken from all recorded steps" in note for note in found.notes)


def test_pairs_over_several_groups_have_a_mean_but_no_fullest_rank(tmp_path):
    trace = with_routing(run(tmp_path, DEEPEP, "recv", "up"), (16, 48), (10, 10, 40, 4), groups=2)
    table = receive_buffers(trace).table.set_index("role")
    assert table["used_rows"]["fan_out"] == 16.0  # 20 and 44 pairs over two groups
    assert table["most_used_rows"].isna().to_dict() == {
        "fan_out": True, "dispatch": False, "combine": False,
    }  # fmt: skip


@pytest.mark.parametrize("program", [DEEPEP, PADDED])
def test_programs_that_did_not_run_have_no_row(tmp_path, program):
    assert receive_buffers(trace_of(tmp_path, program)).table.empty


def test_a_cap_is_as_large_as_its_factor_until_the_worst_case():
    assert capped_bytes(448, 14_336, 1.25) == 560
    assert capped_bytes(448, 14_336, 40) == 14_336  # the worst is 32 times the balanced


def test_balance_and_what_a_cap_saves_are_known_where_routing_is(tmp_path):
    """Rank 0 receives 16 rows, rank 1 48 of 64: 32 with balance; one buffer is alive."""
    trace = with_routing(run(tmp_path, DEEPEP, "recv"), (16, 48), (10, 10, 40, 4))
    row = BUFFERS.frame(
        [
            {
                **{c.name: "" if c.kind == "text" else 0 for c in BUFFERS.columns},
                **{"module": 7, "op": "recv", "size_bytes": 1024, "live_from": 1, "live_to": 5},
                "is_at_peak": False,
            }
        ]
    )
    table = receive_buffers(dataclasses.replace(trace, buffers=row)).table.set_index("role")
    assert table["balanced_rows"]["dispatch"] == 32.0
    assert table["balanced_bytes"]["dispatch"] == 512.0
    assert table["copies_alive"]["dispatch"] == 1.0
    assert table["cap_saves_bytes"]["dispatch"] == 16 * 16  # 64 − 48 rows of 8 bf16
    assert table["copies_alive"].isna()["fan_out"]


def use_of(op="a", size_bytes=64):
    return BufferUse(7, op, op, "dispatch", "dispatch", "forward", "f32", 4, 4, size_bytes, "")


def test_buffers_alive_at_once_are_places_in_memory():
    """a [0, 4), b [2, 6) elsewhere, c [3, 5) in the place of a, d [6, 9), e of another size."""
    rows = [
        {"op": "a", "offset_bytes": 0, "live_from": 0, "live_to": 4},
        {"op": "b", "offset_bytes": 64, "live_from": 2, "live_to": 6},
        {"op": "c", "offset_bytes": 0, "live_from": 3, "live_to": 5},
        {"op": "d", "offset_bytes": 0, "live_from": 6, "live_to": 9},
        {"op": "e", "offset_bytes": 128, "live_from": 0, "live_to": 9, "size_bytes": 32},
        {"op": "f", "offset_bytes": 256, "live_from": -1, "live_to": -1},
    ]
    none = {c.name: "" if c.kind == "text" else 0 for c in BUFFERS.columns}
    frame = BUFFERS.frame(
        [{**none, "module": 7, "size_bytes": 64, "is_at_peak": False, **row} for row in rows]
    )
    assert copies_alive(frame, use_of("a")) == 2
    assert copies_alive(frame, use_of("f")) is None
    assert copies_alive(frame, use_of("e", 32)) == 1


@pytest.mark.parametrize(
    ("dtype", "size_bytes"), [("bf16", 64), ("f8e4m3fn", 32), ("f4e2m1fn", 16)]
)
def test_elements_of_less_than_a_byte_are_packed(dtype, size_bytes):
    """4 rows of 8 elements of 16, 8 and 4 bits."""
    made = made_of(parameter("a", f"{dtype}[4,8]"), call("moe_dispatch", f"{dtype}[4,8]", "a"))
    classes = pd.DataFrame(
        [{"module": 7, "op": "out", "component": "dispatch", "phase": "forward"}]
    )
    (use,) = buffer_uses({7: made}, classes.assign(source=""))
    assert (use.dtype, use.rows, use.width, use.size_bytes) == (dtype, 4, 8, size_bytes)
