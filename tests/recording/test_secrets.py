"""No secret of a command or an environment is written into a run folder, or shown of an old one."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from moeprof.recording.host_facts import relevant_environment
from moeprof.recording.run_folder import Launch, write_meta
from moeprof.reports.run.record import read_record, read_whole

SECRETS = ("quux17", "xyzzy42", "love1815")
ARGV = ["python3", "train.py", "--api-key", "quux17", "HF_TOKEN=xyzzy42", "--steps=12",
        "--data=s3://ada:love1815@store/tokens"]  # fmt: skip


def written(run_dir):
    launch = Launch(ARGV, datetime(2026, 4, 1, tzinfo=UTC), datetime(2026, 4, 2, tzinfo=UTC), 1)
    process = {
        "process_index": 0,
        "problems": ["closing failed: https://quux17@example.org/x"],
        "xla_flags": "--xla_dump_to=/d --token=xyzzy42",
        "files": [],
    }
    environment = {"XLA_FLAGS": "--xla_dump_to=/d"}
    return write_meta(run_dir, launch, process, versions={}, environment=environment)


def test_meta_holds_no_secret_and_all_else(tmp_path):
    meta = written(tmp_path)
    text = (tmp_path / "meta.json").read_text()
    assert not any(secret in text for secret in SECRETS)
    assert meta["argv"][:3] == ["python3", "train.py", "--api-key"]
    assert "--steps=12" in meta["command"]
    assert "store/tokens" in meta["command"]


def test_a_second_process_leaves_the_first_as_it_is(tmp_path):
    first = written(tmp_path)["processes"][0]
    launch = Launch(ARGV, datetime(2026, 4, 1, tzinfo=UTC), None, None)
    meta = write_meta(tmp_path, launch, {"process_index": 1}, versions={}, environment={})
    assert meta["processes"][0] == first


def test_an_older_record_is_shown_without_them(tmp_path):
    old = {
        "schema": "moeprof.run/1",
        "command": "python train.py --api-key quux17 HF_TOKEN=xyzzy42",
        "argv": ARGV,
        "exit_code": 1,
        "processes": [{"argv": ARGV, "problems": ["lost https://ada:love1815@h/x"]}],
    }
    (tmp_path / "meta.json").write_text(json.dumps(old))
    shown = json.dumps([read_record(str(tmp_path)), read_whole(str(tmp_path))])
    assert not any(secret in shown for secret in SECRETS)
    assert "--steps=12" in shown


def test_the_environment_is_written_without_them():
    told = relevant_environment(
        {
            "JAX_COMPILATION_CACHE_DIR": "s3://ada:love1815@store/cache",
            "XLA_FLAGS": "--xla_gpu_autotune_level=4",
            "NCCL_API_KEY": "quux17",
        }
    )
    assert not any(secret in json.dumps(told) for secret in SECRETS)
    assert told["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
