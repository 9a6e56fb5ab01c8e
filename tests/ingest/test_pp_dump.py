import json
import math

import pytest

from moeprof.analyzers.questions.pipeline import pipeline_stages
from moeprof.errors import TraceError
from moeprof.ingest.sources.pp_dump import is_pp_dump, read_pp_dump

CONFIG = {"pp_size": 2, "vp_size": 1, "num_mbs": 2}


def record(total, *, start=0.0):
    """Forward and backward of 2 microbatches, 1 ms and 2 ms each."""
    return {
        "total": total,
        "memory": 3.0,
        "fwd_start": [start, start + 1],
        "fwd_end": [start + 1, start + 2],
        "bwd_start": [start + 2, start + 5],
        "bwd_end": [start + 4, start + 7],
    }


def dump(folder, config=CONFIG, ranks=None):
    ranks = ranks or [{"1": record(50.0), "2": record(10.0)}, {"1": record(9.0, start=1.5)}]
    (folder / "config.json").write_text(json.dumps(config))
    for number, rank in enumerate(ranks):
        (folder / f"pp_rank_{number}.json").write_text(json.dumps(rank))
    return folder


def test_work_and_times_are_whole_nanoseconds(tmp_path):
    found = read_pp_dump(dump(tmp_path))
    assert (found.schedule, found.stages, found.microbatches, found.chunks) == ("1f1b", 2, 2, 1)
    first = found.work[(found.work["stage"] == 1) & (found.work["kind"] == "forward")].iloc[0]
    assert (first["start_ns"], first["duration_ns"]) == (1_500_000, 1_000_000)
    assert found.times["duration_ns"].tolist() == [50_000_000, 10_000_000, 9_000_000]
    assert found.times["memory_bytes"].tolist() == [3.0 * 2**30] * 3


def test_the_bubble_is_what_no_work_covers_in_the_slowest_ranks_iteration(tmp_path):
    both = {"1": record(50.0), "2": record(10.0)}
    table = pipeline_stages(read_pp_dump(dump(tmp_path, ranks=[both, both])), iteration=2).table
    assert table["bubble_share"].tolist() == pytest.approx([0.4, 0.4])  # 6 of 10 ms work
    assert table["gaps_ns"].tolist() == [1_000_000] * 2
    assert table["ramp_ns"].tolist() == [3_000_000] * 2


def test_several_chunks_per_rank_are_the_interleaved_schedule(tmp_path):
    found = read_pp_dump(dump(tmp_path, CONFIG | {"vp_size": 2}))
    assert (found.schedule, found.chunks) == ("interleaved", 2)


def test_a_folder_is_known_by_its_files(tmp_path):
    assert not is_pp_dump(tmp_path)
    assert is_pp_dump(dump(tmp_path))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "pp_rank_1.json").unlink(), "pp_rank_1.json: cannot be read"),
        (lambda f: (f / "pp_rank_0.json").write_text("{"), "pp_rank_0.json: expected JSON"),
        (lambda f: (f / "pp_rank_0.json").write_text("[]"), "expected a JSON object, found list"),
        (lambda f: (f / "config.json").write_text("{}"), "expected a number as 'pp_size'"),
        (lambda f: dump(f, CONFIG | {"num_mbs": 0}), "microbatches must be at least 1"),
        (lambda f: dump(f, ranks=[{"1": {}}]), "iteration 1: expected a number as 'total'"),
        (lambda f: dump(f, ranks=[{"x": {}}]), "iteration x: expected an object by number"),
        (
            lambda f: dump(f, ranks=[{"1": record(9.0) | {"fwd_end": []}}]),
            "expected as many fwd_end as fwd_start, found 0 and 2",
        ),
        (
            lambda f: dump(f, ranks=[{"1": record(9.0) | {"fwd_end": [-1.0, 2.0]}}]),
            "fwd work 0 ends before it starts",
        ),
        (
            lambda f: dump(f, ranks=[{"1": record(9.0) | {"fwd_end": 3}}]),
            "expected a list as 'fwd_end', found int",
        ),
        (lambda f: dump(f, CONFIG | {"num_mbs": 1.9}), "expected a whole number as 'num_mbs'"),
        (lambda f: dump(f, CONFIG | {"num_mbs": 10**9}), "from -1 to 1e.06 as 'num_mbs'"),
        (lambda f: dump(f, CONFIG | {"pp_size": math.nan}), "as 'pp_size', found nan"),
        (lambda f: dump(f, ranks=[{"1": record(math.nan)}]), "as 'total', found nan"),
        (lambda f: dump(f, ranks=[{"1": record(-1.0)}]), "from 0 to 1e.12 as 'total', found -1"),
        (lambda f: dump(f, ranks=[{"1": record(1e300)}]), "as 'total', found one far beyond"),
        (lambda f: dump(f, ranks=[{"1": record(10**400)}]), "as 'total', found one far beyond"),
        (
            lambda f: dump(f, ranks=[{"1": record(9.0) | {"memory": -1}}]),
            "from 0 to 1e.09 as 'memory', found -1",
        ),
        (
            lambda f: dump(f, ranks=[{"1": record(9.0) | {"fwd_start": [math.nan, 1]}}]),
            "as 'fwd_start', found nan",
        ),
    ],
)
def test_a_damaged_dump_says_what_was_expected(tmp_path, spoil, message):
    spoil(dump(tmp_path))
    with pytest.raises(TraceError, match=message):
        read_pp_dump(tmp_path)
