import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.drawings import roofline_points as module
from moeprof.analyzers.drawings.roofline_points import roofline_points
from moeprof.analyzers.questions.roofline import roofline

OPS = (
    hlo("x", "parameter", size_bytes=2 * 64 * 32, shape="bf16[64,32]"),
    hlo("w", "parameter", size_bytes=2 * 32 * 16, shape="bf16[32,16]"),
    hlo("up", "dot", "x w", size_bytes=2 * 64 * 16, shape="bf16[64,16]",
        details="lhs_contracting=1 rhs_contracting=0"),
    hlo("sum", "add", "x x", size_bytes=2 * 64 * 32, shape="bf16[64,32]"),
)  # fmt: skip


def work(**models):
    return traced([kernel("up", 0, 1000), kernel("sum", 1000, 3000)], OPS, models=models)


def test_points_are_the_rows_of_the_roofline():
    trace = work(a="NVIDIA H200")
    found = roofline_points(trace).table
    rows = roofline(trace).table
    rows = rows[rows["op"] != ""].reset_index(drop=True)
    assert found["op"].tolist() == ["sum", "up"]
    for name in found.columns:
        assert found[name].tolist() == pytest.approx(rows[name].tolist(), nan_ok=True), name


def test_an_unknown_device_leaves_what_multiplies():
    found = roofline_points(work())
    (up,) = found.table.to_dict("records")
    assert up["op"] == "up"
    # 2 · 64 · 32 · 16 FLOP; 64 · 32 + 32 · 16 + 64 · 16 numbers of two bytes; in 1 µs
    assert up["intensity"] == pytest.approx(65_536 / 7168)
    assert up["tflop_per_s"] == pytest.approx(0.065536)
    told = {m.metric: m.value for m in found.headline}
    assert told == {"op_time": 4000.0, "ops": 2, "cheaper_ops": 0}


def test_what_is_not_drawn_is_counted(monkeypatch):
    monkeypatch.setattr(module, "MOST_POINTS", 1)
    found = roofline_points(work(a="NVIDIA H200"))
    assert found.table["op"].tolist() == ["sum"]
    assert found.headline[-1].value == 1
    assert found.notes == ("1 more ops, each cheaper than these, are not drawn",)
