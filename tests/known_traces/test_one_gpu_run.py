"""A run folder of one H200, whose kernels' calls lie in the execution itself, and ROCm's flows."""

import tarfile
from itertools import pairwise

import pytest

from moeprof.ingest import open_run


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with tarfile.open(data / "runs" / "h200_1gpu_bundled_sparse-gmm.tgz") as packed:
        packed.extractall(folder, filter="data")
    [meta] = folder.rglob("meta.json")
    return meta.parent


def test_the_folder_has_the_steps_of_its_file(run, tmp_path):
    """Three annotations, steps 4 to 6, and three executions of jit_train_step."""
    [file] = run.rglob("*.xplane.pb")
    bare = tmp_path / "host.xplane.pb"
    bare.write_bytes(file.read_bytes())
    told = []
    for trace in (open_run(run), open_run(bare)):
        assert trace.steps["used"].tolist() == [True] * 3
        assert len(trace.executions) == 3
        told.append(trace.steps[["step", "start_ns", "duration_ns"]].to_numpy().tolist())
        laws = {law.check: law for law in trace.trust}
        assert [laws[name].verdict for name in ("step_ways", "program_ids", "causality")] == [
            "ok"
        ] * 3
        assert laws["causality"].found == 5_134  # ns, the least of 3,304 launches
    assert told[0] == told[1]
    assert [step for step, _, _ in told[0]] == [4, 5, 6]
    starts = [start for _, start, _ in told[0]]
    assert [b - a for a, b in pairwise(starts)] == [43_836_526, 47_251_664]


def test_flows_tell_the_executions_of_rocm(opened):
    """JAX 0.8 on ROCm: calls of programs have no run id, and the kernels' calls no thread."""
    trace = opened("gfx950_te_attention.xplane.pb")
    assert trace.executions["run_id"].tolist() == [84, 86, 88, 90, 92]
    assert trace.steps["used"].tolist() == [True] * 5
