"""Traces of several processes in one file, and with XProf's derived lines."""

import pytest

from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run

JAX = {0: (750, 1470), 1: (875, 1475), 2: (1000, 1480)}
PYTORCH = {0: (1000, 1950), 1: (1200, 1960), 2: (1400, 1970)}
PREFIXED = {0: (800, 1950), 1: (1000, 1950), 2: (1200, 1970), 3: (1400, 1970)}
XPROF = {0: (2400, 4440), 1: (2700, 4440), 2: (3000, 4460), 3: (3300, 4460)}
DERIVED = {0: (4100, 4600), 1: (4100, 4600)}


@pytest.mark.parametrize(
    ("name", "expected", "steps", "hosts"),
    [
        ("jax_three_ranks.trace.json.gz", JAX, [0, 1, 2, 3], 3),
        ("pytorch_three_ranks.trace.json.gz", PYTORCH, [5, 6, 7, 8], 3),
        ("prefixed_two_hosts.trace.json.gz", PREFIXED, [0, 1, 2], 2),
        ("xprof_two_hosts.trace.json.gz", XPROF, [0, 1, 2, 3, 4], 2),
        ("xprof_derived_lines.trace.json.gz", DERIVED, [0, 1, 2, 3], 1),
        ("xprof_derived_lines.xplane.pb.gz", DERIVED, [0, 1, 2, 3], 1),
    ],
)
def test_work_and_length_of_each_rank_s_steps(data, name, expected, steps, hosts):
    trace = open_run(data / "cases" / "merged_json" / name)
    assert trace.steps["step"].tolist() == steps
    assert trace.steps["used"].all()
    assert len(trace.meta.hosts) == hosts
    table = timeline(trace).table
    found = {}
    for place, ((_, _), rows) in enumerate(table.groupby(["host", "device"], observed=True)):
        work = rows["compute_ns"] + rows["exposed_communication_ns"] + rows["exposed_copy_ns"]
        assert work.nunique() == rows["duration_ns"].nunique() == 1
        found[place] = (int(work.iloc[0]) // 1000, int(rows["duration_ns"].iloc[0]) // 1000)
    assert found == expected
    totals = trace.events.groupby(["host", "device"], observed=True)["duration_ns"].sum() // 1000
    assert totals.tolist() == [work * len(steps) for work, _ in expected.values()]
    checks = {check.check: check for check in trace.trust}
    assert not any(check.withholds_any for check in trace.trust)
    if "xplane" not in name:
        assert checks["merged"].verdict == "ok"
    if name.startswith("pytorch"):
        assert "command buffer" not in checks["resolved"].detail
        assert trace.devices["rank"].tolist() == [0, 1, 2]
