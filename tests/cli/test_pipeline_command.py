import json
import re

import pytest
from builders.sessions import two_hosts
from click.testing import CliRunner, Result

from moeprof.cli.main import group
from moeprof.reports.pipeline.terminal import grid
from moeprof.specs.schedule import SCHEDULES

SHAPE = ("--stages", "4", "--microbatches", "8")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["pipeline", *map(str, arguments)])


def dump(folder):
    """2 ranks, 2 microbatches: rank 0 works 0–2 and 4–8 ms, rank 1 1–7 ms, of 8 ms."""
    (folder / "config.json").write_text('{"pp_size": 2, "vp_size": 1, "num_mbs": 2}')
    ranks = [
        {"fwd_start": [0, 1], "fwd_end": [1, 2], "bwd_start": [4, 6], "bwd_end": [6, 8]},
        {"fwd_start": [1, 4], "fwd_end": [2, 5], "bwd_start": [2, 5], "bwd_end": [4, 7]},
    ]
    for number, rank in enumerate(ranks):
        record = {"3": rank | {"total": 8.0, "memory": 1.0}}
        (folder / f"pp_rank_{number}.json").write_text(json.dumps(record))
    return folder


def test_a_projection_is_drawn_within_80_columns():
    done = run("--stages", 4, "--microbatches", 8, "--schedule", "gpipe", "--forward-only")
    assert done.exit_code == 0
    assert "Iteration 0: 11.00 ms." in done.stdout
    assert "Bubble 27.3 %, 27.3 % by the schedule." in done.stdout
    assert "stage 3 ····················00000011" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_drawn_with_its_two_bubbles(name):
    done = run("--stages", 4, "--microbatches", 8, "--schedule", name, "--activation-gib", 2)
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    played, theory = re.search(r"Bubble (\S+) %, (\S+) %\s+by", done.stdout).groups()
    assert played == theory
    assert re.search(r"^stage .* held +saved$", done.stdout, re.MULTILINE)


def test_all_schedules_are_compared_within_80_columns():
    done = run("--stages", 8, "--microbatches", 32, "--schedule", "all", "--activation-gib", 2)
    assert done.exit_code == 0
    assert (
        "v-min             2  12.3 %     12.3 %  12.3 %   36.50 ms     4  8.000 GiB" in done.stdout
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = run("--stages", 8, "--microbatches", 32, "--schedule", "all", "--json")
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (document["projected"], document["measured"]) == (None, None)
    rows = {row["schedule"]: row for row in document["schedules"]["finding"]["rows"]}
    assert set(rows) == set(SCHEDULES)
    assert rows["v-half"]["in_flight"] == 5
    assert rows["v-half"]["activation_bytes"] is None


def test_stages_and_transfers_of_any_length_are_played():
    """2 stages of 2 and 4 ms, 1 microbatch, half forward: 1 + 2 + 2 + 1 ms and 2 transfers."""
    times = ("--forward-ms", 1, "--backward-ms", 1, "--stage-ms", "2,4", "--p2p-ms", 0.25)
    done = run("--stages", 2, "--microbatches", 1, *times, "--json")
    projected = json.loads(done.stdout)["projected"]
    assert projected["source"] == "2, 4 ms of work per microbatch and stage, assumed"
    headline = {m["metric"]: m["value"] for m in projected["finding"]["headline"]}
    assert headline["iteration_time"] == 6_500_000
    assert "handing a result on takes 0.25 ms, beside the work" in projected["finding"]["notes"][0]


def test_a_dump_is_measured(tmp_path):
    done = run("--run", dump(tmp_path), "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (document["schema"], document["projected"]) == ("moeprof.pipeline/1", None)
    headline = {m["metric"]: m["value"] for m in document["measured"]["finding"]["headline"]}
    assert headline["bubble_share"] == 0.25  # 6 of 8 ms
    assert (headline["iteration"], headline["schedule"]) == (3, "1f1b")
    assert len(document["measured"]["work"]) == 8


def test_both_are_shown_where_both_are_asked_for(tmp_path):
    done = run("--stages", 2, "--microbatches", 2, "--run", dump(tmp_path))
    assert done.stdout.index("Projected") < done.stdout.index("Measured")


def test_a_run_without_a_pipeline_says_so(tmp_path):
    done = run("--run", two_hosts(tmp_path / "run"))
    assert done.exit_code == 0
    assert " - none in this trace: no transfer between neighbouring devices" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Say what to show"),
        (["--stages", "4"], "belong together"),
        (["--stages", "0"], "0"),
        ([*SHAPE, "--stage-ms", "1,x"], "such as 1,1,1.5, found '1,x'"),
        ([*SHAPE, "--stage-ms", "1,0"], "found '1,0'"),
        ([*SHAPE, "--activation-gib", "1,2"], "expected 4 sizes, one per stage, or one for all"),
        ([*SHAPE, "--weight-ms", "2"], "expected less than 0.666667, found 2"),
        ([*SHAPE, "--schedule", "zbv", "--forward-only"], "zbv is a way to order backward work"),
    ],
)
def test_what_is_missing_is_wrong_usage(arguments, said):
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_letter_is_what_runs_in_the_middle_of_its_time():
    """Of 8 ms in 4 letters: middles at 1, 3, 5 and 7 ms."""
    work = [
        {"stage": 0, "kind": "forward", "slot": 11, "start_ns": 0, "duration_ns": 2},
        {"stage": 0, "kind": "backward", "slot": 0, "start_ns": 4, "duration_ns": 2},
        {"stage": 1, "kind": "weight_gradient", "slot": 0, "start_ns": 7, "duration_ns": 1},
    ]
    assert grid(work, 8, 3, 4) == ["1·a·", "···w", "····"]
