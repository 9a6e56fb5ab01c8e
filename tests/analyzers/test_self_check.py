import dataclasses

import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers import analyze, check_tables
from moeprof.analyzers.questions.ops import ops
from moeprof.analyzers.registry import all_names
from moeprof.errors import TableError
from moeprof.reports.run.document import build
from moeprof.reports.run.terminal import tables


def test_busy_devices_beside_an_empty_op_table_are_an_error():
    trace = traced([kernel("dot", 0, 5)], (hlo("dot", "dot"),))
    found = ops(trace)
    lost = dataclasses.replace(found, table=found.table.iloc[:0])
    with pytest.raises(
        TableError, match=r"made: devices are busy for 5 ns, but table 'ops' has no"
    ):
        check_tables(trace, {"ops": lost})


def test_an_empty_table_of_devices_without_work_is_no_error():
    trace = traced([kernel("", 0, 9, name="Stream Sync", kind="sync")])
    check_tables(trace, {"ops": dataclasses.replace(ops(trace), table=ops(trace).table.iloc[:0])})
    assert list(analyze(traced(()))) == all_names()


def test_kernels_without_an_op_fill_the_op_table():
    work = [kernel("", 10 * n, 4, name="loop_fusion_3") for n in range(200)]
    name = "ncclDevKernel_AllGather_RING_LL"
    work += [kernel("", 10 * n + 5, 2, name=name) for n in range(20)]
    findings = analyze(traced(work))
    calls = findings["ops"].table.set_index("op")["calls"].to_dict()
    assert calls == {"loop_fusion_3": 200.0, name: 20.0}
    assert findings["collectives"].table["calls"].tolist() == [20.0]
    row = findings["timeline"].table.iloc[0]
    assert (row["compute_ns"], row["exposed_communication_ns"]) == (800, 40)


def test_one_device_that_only_computes_has_every_section():
    trace = traced([kernel("dot", 0, 5), kernel("dot", 9, 5)], (hlo("dot", "dot"),))
    findings = analyze(trace)
    assert list(findings) == all_names()
    for name in ("collectives", "stragglers", "pipeline"):
        assert findings[name].table.empty
        assert findings[name].notes[0].startswith("none in this trace")
    shown = tables(build(trace, findings)).plain
    # receive buffers, grouped GEMM, dispatch and combine too
    assert shown.count("None in this trace.") == 6
    assert max(map(len, shown.splitlines())) <= 80
