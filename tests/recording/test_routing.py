from __future__ import annotations

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import moeprof.routing
from moeprof.errors import CaptureError
from moeprof.recording import routing
from moeprof.tables.routing import RECEIVED, RECORDING_KEY, ROUTING


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(routing, "_LOGS", {})
    monkeypatch.setenv("MOEPROF_RUN_DIR", str(tmp_path))
    return tmp_path


def read(run_dir, name):
    return pd.read_parquet(run_dir / "routing" / name)


def test_each_expert_has_a_row_even_without_tokens(run_dir):
    moeprof.routing.record(7, jnp.array([[5, 0, 2, 1]]), expert_ranks=2, first_layer=3)
    (path,) = moeprof.routing.flush()
    assert path == run_dir / "routing" / "p0.parquet"
    table = ROUTING.check(read(run_dir, "p0.parquet"))
    assert table.to_numpy().tolist() == [
        # step, layer, expert, rank, tokens
        [7, 3, 0, 0, 5],
        [7, 3, 1, 0, 0],
        [7, 3, 2, 1, 2],
        [7, 3, 3, 1, 1],
    ]


def test_tables_bear_the_id_of_the_recording(run_dir, monkeypatch):
    monkeypatch.setenv("MOEPROF_RECORDING", "77aa01")
    moeprof.routing.record(3, jnp.array([[2, 6]]), received_rows=jnp.array([[[4, 4]]]))
    paths = moeprof.routing.flush()
    assert [pq.read_schema(path).metadata[RECORDING_KEY] for path in paths] == [b"77aa01"] * 2
    assert routing.RECORDING_KEY == RECORDING_KEY


def test_received_rows_name_group_and_rank(run_dir):
    received = jnp.array([[[10, 11], [12, 13]]])  # 1 layer, 2 groups, 2 ranks
    moeprof.routing.record(0, jnp.zeros((1, 4), int), received_rows=received)
    moeprof.routing.flush()
    table = RECEIVED.check(read(run_dir, "received-p0.parquet"))
    assert table.to_numpy().tolist() == [
        # step, layer, group, rank, rows
        [0, 0, 0, 0, 10],
        [0, 0, 0, 1, 11],
        [0, 0, 1, 0, 12],
        [0, 0, 1, 1, 13],
    ]
    # The last dimension also says how many ranks share the experts.
    assert read(run_dir, "p0.parquet")["rank"].tolist() == [0, 0, 1, 1]


def test_a_split_array_gives_the_rows_of_a_whole_one(run_dir):
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    whole = np.arange(2 * 2 * 4).reshape(2, 2, 4)
    mesh = jax.make_mesh((2, 4), ("group", "rank"))
    split = jax.device_put(whole, NamedSharding(mesh, PartitionSpec(None, "group", "rank")))
    moeprof.routing.record(0, jnp.zeros((2, 4), int), received_rows=split)
    moeprof.routing.flush()
    assert read(run_dir, "received-p0.parquet")["rows"].tolist() == whole.reshape(-1).tolist()


def test_a_later_flush_keeps_the_earlier_steps(run_dir):
    for step in (0, 1):
        moeprof.routing.record(step, np.array([[step]]))
        moeprof.routing.flush()
    assert read(run_dir, "p0.parquet")["step"].tolist() == [0, 1]


def test_a_step_recorded_twice_keeps_its_last_values(run_dir):
    for tokens in (3, 4):
        moeprof.routing.record(0, np.array([[tokens]]))
    moeprof.routing.flush()
    assert read(run_dir, "p0.parquet")["tokens"].tolist() == [4]


def test_only_the_last_steps_are_kept(run_dir):
    for step in range(routing.KEPT_STEPS + 3):
        moeprof.routing.record(step, np.array([[1]]))
    moeprof.routing.flush()
    steps = read(run_dir, "p0.parquet")["step"]
    assert steps.min() == 3
    assert len(steps) == routing.KEPT_STEPS


def test_without_a_run_folder_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(routing, "_LOGS", {})
    monkeypatch.delenv("MOEPROF_RUN_DIR", raising=False)
    moeprof.routing.record(0, "not even an array")
    assert moeprof.routing.flush() == []


def test_record_does_not_read_the_array(run_dir):
    class Unread:
        shape = (1, 4)

        def __array__(self):
            raise AssertionError("record waited for the device")

    moeprof.routing.record(0, Unread())


def test_shapes_that_do_not_fit_are_named(run_dir):
    with pytest.raises(CaptureError, match=r"tokens_per_expert \[layers, experts\].*\(4,\)"):
        moeprof.routing.record(0, np.zeros(4))
    with pytest.raises(CaptureError, match="4 experts cannot lie evenly on 3 expert ranks"):
        moeprof.routing.record(0, np.zeros((1, 4)), expert_ranks=3)
    with pytest.raises(CaptureError, match=r"\[1 layers, groups, ranks\].*\(2, 1, 4\)"):
        moeprof.routing.record(0, np.zeros((1, 4)), received_rows=np.zeros((2, 1, 4)))


def test_a_folder_that_cannot_be_written_is_named(run_dir):
    (run_dir / "routing").write_text("a file where the folder should be")
    moeprof.routing.record(0, np.array([[1]]))
    with pytest.raises(CaptureError, match=r"routing table .*p0\.parquet cannot be written"):
        moeprof.routing.flush()


def test_ranks_that_contradict_the_received_rows_are_refused(run_dir):
    with pytest.raises(CaptureError, match=r"expert_ranks is 2, but received_rows has 4 ranks"):
        moeprof.routing.record(
            0, np.zeros((1, 4)), received_rows=np.zeros((1, 1, 4)), expert_ranks=2
        )


def test_rows_that_could_not_be_written_wait_for_the_next_flush(run_dir):
    blocker = run_dir / "routing"
    blocker.write_text("a file where the folder should be")
    moeprof.routing.record(0, np.array([[1]]), received_rows=np.array([[[1]]]))
    with pytest.raises(CaptureError):
        moeprof.routing.flush()
    blocker.unlink()
    moeprof.routing.flush()
    assert read(run_dir, "p0.parquet")["tokens"].tolist() == [1]
    assert read(run_dir, "received-p0.parquet")["rows"].tolist() == [1]


def test_a_process_that_holds_replicas_alone_leaves_an_empty_table(run_dir):
    class Replica:
        replica_id = 1
        data = np.array([[[5]]])
        index = (slice(None), slice(None), slice(None))

    class Replicated:
        shape = (1, 1, 1)
        addressable_shards = (Replica(),)

    moeprof.routing.record(0, np.array([[5]]), received_rows=Replicated())
    moeprof.routing.flush()
    assert len(RECEIVED.check(read(run_dir, "received-p0.parquet"))) == 0


def test_columns_agree_with_the_schemas():
    assert list(routing.ROUTING_COLUMNS) == ROUTING.names
    assert list(routing.RECEIVED_COLUMNS) == RECEIVED.names


def test_a_script_that_never_flushes_leaves_its_tables_at_exit(tmp_path):
    script = (
        "import sys, jax.numpy as jnp, moeprof.routing as routing\n"
        "routing.record(3, jnp.array([[1, 2]]), received_rows=jnp.array([[[3]]]))\n"
        "assert 'pandas' not in sys.modules\n"
    )
    environment = os.environ | {"MOEPROF_RUN_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert read(tmp_path, "p0.parquet")["tokens"].tolist() == [1, 2]
    assert read(tmp_path, "received-p0.parquet")["rows"].tolist() == [3]


def test_steps_that_failed_are_named_at_exit_and_the_others_written(tmp_path):
    script = (
        "import numpy as np, moeprof.routing as routing\n"
        "class Failed:\n"
        "    shape = (1, 2)\n"
        "    def block_until_ready(self): raise RuntimeError('INVALID_ARGUMENT: lens[0] is -1')\n"
        "    __array__ = block_until_ready\n"
        "routing.record(3, np.array([[1, 2]]))\n"
        "routing.record(4, Failed())\n"
    )
    environment = os.environ | {"MOEPROF_RUN_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
    assert done.returncode == 0
    assert done.stderr.decode() == "moeprof: no routing of step(s) 4, which failed\n"
    assert read(tmp_path, "p0.parquet")["step"].tolist() == [3, 3]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8", "int16"])
def test_counts_of_any_type_are_whole_numbers(run_dir, dtype):
    moeprof.routing.record(3, jnp.array([[5, 0, 2]], dtype))
    moeprof.routing.flush()
    assert ROUTING.check(read(run_dir, "p0.parquet"))["tokens"].tolist() == [5, 0, 2]
