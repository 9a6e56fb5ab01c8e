"""`moeprof memory search`: what a user types and reads."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from moeprof.cli.memory import command as memory
from moeprof.cli.memory.subcommands import search as command
from moeprof.errors import SelectionError
from moeprof.projector.request import wanted
from moeprof.projector.request.plan import Request
from moeprof.projector.request.search import SearchRequest, wanted_search
from moeprof.projector.search import space
from moeprof.reports.search.terminal import drawn
from moeprof.reports.search.words import next_command
from moeprof.specs.remat import Remat

CONFIGS = Path(__file__).parents[2] / "data" / "maxtext_configs"
DEEPSEEK = ("--model", "deepseek_v3", "--hardware", "mi355x", "--devices", "64")


def run(*arguments: str, command: click.Command = command) -> str:
    """What the command prints."""
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def document(*arguments: str) -> dict:
    return json.loads(run(*arguments, "--json"))


def test_the_best_plan_comes_first_in_a_sentence():
    text = run(*DEEPSEEK, "--pdbs", "4", "--strategy", "sparse-gmm-deepep", "--top", "3")
    flowing = " ".join(text.split())
    assert "Best: sparse-gmm-deepep on" in flowing
    assert "fits, " in flowing
    assert "In the order of time, measured: rates were fitted to published runs" in flowing
    assert "have layers that the stages do not divide" in flowing
    assert "Next: the account of the best plan moeprof memory --model deepseek_v3" in flowing
    assert max(map(len, text.splitlines())) <= 80


def test_the_document_has_figures_with_units_and_adds_up():
    found = document(*DEEPSEEK, "--pdbs", "4", "--strategy", "sparse-gmm", "--top", "4")
    assert found["schema"] == "moeprof.search/1"
    assert found["considered"] == found["fitting"] + sum(r["plans"] for r in found["rejected"])
    assert [plan["rank"] for plan in found["plans"]] == [1, 2, 3, 4]
    for plan in found["plans"]:
        assert sum(row["seconds"] for row in plan["time"]) == pytest.approx(plan["seconds"])
        inside = plan["args_bytes"] + plan["temp_bytes"]
        assert plan["margin"] == pytest.approx(1 - inside / plan["pool_bytes"], abs=1e-9)
        for name in ("seconds", "tokens_per_s_per_device", "mfu"):
            low, high = plan[f"{name}_range"]
            assert low < plan[name] < high
        # The slow end of the step is the slow end of the speed.
        fast, slow = plan["seconds_range"]
        ends = [plan["seconds"] * plan["tokens_per_s_per_device"] / end for end in (slow, fast)]
        assert plan["tokens_per_s_per_device_range"] == pytest.approx(ends)
    assert found["what_if"] is None


def test_degrees_can_be_limited():
    found = document(*DEEPSEEK, "--pdbs", "4", "--ep", "8,16", "--fsdp", "8", "--max-ep", "8")
    assert {plan["plan"]["expert"] for plan in found["plans"]} == {8}
    assert {plan["plan"]["fsdp"] for plan in found["plans"]} == {8}


def test_a_global_batch_is_cut_into_microbatches():
    found = document(*DEEPSEEK, "--global-batch", "256", "--strategy", "dense-cf1.25")
    for plan in found["plans"]:
        degrees = plan["plan"]
        shards = degrees["data"] * degrees["fsdp"] * degrees["expert"]
        assert shards * plan["pdbs"] * plan["microbatches"] == 256


def test_what_if_tells_time_and_memory():
    arguments = (*DEEPSEEK, "--pdbs", "7", "--ep", "8", "--fsdp", "8", "--what-if")
    found = document(*arguments, "--strategy", "sparse-gmm-deepep")
    effects = {effect["optimisation"]: effect for effect in found["what_if"]}
    assert effects["DeepEP instead of all-to-all"]["is_used"]
    assert effects["recompute none"]["saved_bytes"] < 0
    text = run(*arguments, "--strategy", "sparse-gmm-deepep")
    assert "grouped GEMM instead of ragged_dot" in text
    assert max(map(len, text.splitlines())) <= 80


def test_megatron_searches_with_and_without_recomputation():
    found = document(
        "--model", "deepseek_v2", "--hardware", "mi355x", "--devices", "32", "--world", "megatron",
        "--global-batch", "512", "--strategy", "sparse-gmm-deepep", "--top", "50",
    )  # fmt: skip
    assert found["inputs"]["remats"] == ["none", "full"]
    assert {plan["remat"] for plan in found["plans"]} <= {"none", "full"}
    assert found["plans"]


def test_where_none_fits_the_nearest_is_told():
    arguments = ("--model", "mixtral_8x7b", "--hardware", "h100_sxm", "--devices", "1")
    flowing = " ".join(run(*arguments).split())
    assert "None of 4 plans fits." in flowing
    assert "misses by least" in flowing
    assert document(*arguments)["nearest"]["margin"] < 0


def test_a_dense_model_has_one_strategy():
    found = document("--model", "llama3_1_405b", "--hardware", "mi355x", "--devices", "64")
    assert len(found["inputs"]["strategies"]) == 1
    assert found["plans"][0]["plan"]["expert"] == 1


CONFIG = {
    "decoder_block": "mixtral", "base_emb_dim": 64, "base_num_query_heads": 4,
    "base_num_kv_heads": 2, "head_dim": 16, "base_mlp_dim": 128, "base_num_decoder_layers": 12,
    "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 1000,
}  # fmt: skip


def test_what_plans_share_is_read_from_the_configuration_as_memory_reads_it(tmp_path):
    file = tmp_path / "run.yml"
    said = {
        "max_target_length": 2048, "opt_type": "sgd", "weight_dtype": "bfloat16",
        "grad_dtype": "float32", "remat_policy": "minimal", "ici_expert_parallelism": 8,
        "per_device_batch_size": 3,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(CONFIG | said))
    arguments = ("--model", str(file), "--devices", "8", "--pdbs", "2")
    found = wanted_search(SearchRequest(model=str(file), devices=8, pdbs=2))
    alone = wanted(Request(model=str(file), devices=8, pdbs="2"))
    base, one = found.space.base, alone.setting
    assert (base.sequence, base.optimizer, base.precision) == (2048, "sgd", one.precision)
    assert base.precision.gradients == "float32"
    assert found.space.remats == (one.plan.remat,) == (Remat("minimal"),)
    text = " ".join(run(*arguments).split())
    assert (
        "Searched, so not taken from there: ici_expert_parallelism 8, per_device_batch_size 3."
        in text
    )
    over = document(*arguments, "--remat", "full", "--seq", "512", "--optimizer", "adamw")
    assert (over["inputs"]["remats"], over["inputs"]["sequence"]) == (["full"], 512)


def test_the_next_command_projects_the_plan_that_was_found(tmp_path):
    file = tmp_path / "run.yml"
    file.write_text(yaml.safe_dump(CONFIG | {"ici_expert_parallelism": 8, "remat_policy": "none"}))
    arguments = ("--model", str(file), "--devices", "8", "--weight-dtype", "fp32", "--seq", "512")
    found = document(*arguments, "--remat", "full", "--imbalance", "1.5")
    words = shlex.split(next_command(found))[2:]
    told = CliRunner().invoke(memory, [*words, "--json"], catch_exceptions=False)
    row = json.loads(told.output)["rows"][0]
    best = found["plans"][0]
    for name in ("args_bytes", "temp_bytes", "outside_bytes", "pool_bytes", "verdict"):
        assert row[name] == best[name]


MIXTRAL = ("--model", "mixtral_8x7b", "--devices", "16")
WORDS = ("--maxtext", str(CONFIGS / "run.yml"), "max_target_length=256", "--devices", "16")
KEPT = ("--moment-dtype", "float32", "--phases", "start,restore", "--offload", "optimizer")


@pytest.mark.parametrize(
    "arguments",
    [
        (
            *MIXTRAL,
            *KEPT,
            "--no-fused-loss",
            "--pdbs",
            "1",
            "--strategy",
            "dense-cf1.25",
            "--eval-pdbs",
            "2",
            "--host-memory",
            "2000",
        ),
        (*MIXTRAL, "--hardware", "gb200", "--strategy", "sparse-gmm-deepep", "--imbalance", "2"),
        (*MIXTRAL, "--framework", "bundled", "--weight-dtype", "fp32"),
        (*MIXTRAL, "--framework", "bundled", "--mem-fraction", "0.8", "--remat", "full"),
        (*MIXTRAL, "--framework", "megatron", "--seq", "2048", "--strategy", "sparse-gmm"),
        (*MIXTRAL, "--framework", "megatron", "--global-batch", "64", "--no-sequence-parallel"),
        (*MIXTRAL, "--hardware", "tpu_v5p", "--pdbs", "2"),
        (*WORDS, "--mem-fraction", "0.7"),
        (*WORDS, "--hardware", "mi355x", "--maxtext-build", "0.2.5"),
    ],
)
def test_a_command_that_is_printed_is_one_that_runs_and_keeps_what_was_said(arguments):
    """Of a plan to a search for others, and of a search to its best plan: what is given stays."""
    shown = run(*arguments, "--ep", "8", command=memory)
    (hint,) = re.findall(r"Other plans for as many devices: (.*)", " ".join(shown.split()))
    words = shlex.split(hint)[3:]
    assert set(arguments) <= set(words)
    found = document(*words)
    text = drawn(found).plain
    assert max(map(len, text.splitlines())) <= 80 or "--maxtext" in arguments
    printed = text.partition("Next: the account of the best plan")[2].replace("\\\n", " ")
    again = shlex.split(next_command(found))
    assert shlex.split(printed) == again
    row = json.loads(run(*again[2:], "--json", command=memory))["rows"][0]
    best = found["plans"][0]
    for name in ("args_bytes", "temp_bytes", "outside_bytes", "pool_bytes", "verdict"):
        assert row[name] == best[name]


def test_a_search_leaves_out_what_a_host_has_no_memory_for():
    """Saving holds a host's shards in its memory: on 8 GiB no plan of 47 G parameters can."""
    arguments = (*MIXTRAL, "--hardware", "mi355x", "--pdbs", "1", "--ep", "1,8", "--pp", "1")
    arguments += ("--strategy", "dense-cf1.25")
    found = document(*arguments, "--host-memory", "8")
    assert found["plans"] == []
    reasons = {one["reason"]: one["plans"] for one in found["rejected"]}
    assert reasons["need more memory of a host than there is"] > 0
    assert sum(reasons.values()) == found["considered"]
    flowing = " ".join(drawn(found).plain.split())
    assert "misses by least: it needs more memory of a host than there is." in flowing
    assert document(*arguments, "--host-memory", "4000", "--top", "2")["plans"]


def test_more_plans_than_can_be_projected_are_one_line(monkeypatch):
    monkeypatch.setattr(space, "MOST_PLANS", 100)
    with pytest.raises(SelectionError, match=r"16 devices can be .* more than 100 ways: .*--pp"):
        CliRunner().invoke(command, MIXTRAL, catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--devices", "8"), "expected --model"),
        (("--model", "small"), "expected --devices"),
        (("--model", "nope", "--devices", "8"), "found 'nope'"),
        (("--model", "small", "--devices", "8", "--ep", "x"), "--ep: expected whole numbers"),
        (
            ("--model", "small", "--devices", "8", "--ep", "3"),
            "8 devices cannot be laid out with --ep 3 alone",
        ),
        (("--model", "small", "--devices", "8", "--world", "x"), "framework: expected"),
        (("--model", "small", "--devices", "8", "--remat", "x"), "remat: expected"),
        (
            ("--model", "small", "--devices", "8", "--world", "megatron", "--sync-free", "9"),
            "expected 0 to 3",
        ),
        (
            ("--model", "small", "--devices", "8", "--sync-free", "2"),
            "--sync-free: framework maxtext does not have it",
        ),
        (
            ("--model", "small", "--devices", "8", "--overlap"),
            "--overlap: framework maxtext does not have it",
        ),
        (
            ("--model", "small", "--devices", "8", "--world", "megatron", "--mem-fraction", "0.5"),
            "--mem-fraction: framework megatron does not have it",
        ),
        (("--model", "small", "--devices", "8", "--hardware", "x"), "no hardware is named"),
    ],
)
def test_wrong_usage_is_told_in_one_line(arguments, text):
    with pytest.raises(SelectionError) as caught:
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_needs_neither_jax_nor_pandas_nor_plotly():
    code = (
        "import sys; sys.argv = ['moeprof', 'memory', 'search', '--model', 'mixtral_8x7b', "
        "'--hardware', 'mi355x', '--devices', '8', '--pdbs', '1']\n"
        "from moeprof.cli.main import group\n"
        "group(standalone_mode=False)\n"
        "assert not {'jax', 'pandas', 'plotly'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


def test_the_page_shows_what_the_command_answers(monkeypatch):
    page = (Path(__file__).parents[3] / "docs/search.md").read_text(encoding="utf-8")
    shown = re.search(r"\$ moeprof memory search ([^\n]+)\n.*?-->\n```\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    monkeypatch.setenv("COLUMNS", "80")
    assert run(*shlex.split(shown[1])) == shown[2]
