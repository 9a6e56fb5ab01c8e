"""What is a secret in a command, a setting or a text, and what is not."""

from __future__ import annotations

import shlex

import pytest

from moeprof.redact import REDACTED, redacted, redacted_argv, redacted_record, redacted_setting


@pytest.mark.parametrize(
    ("words", "secrets"),
    [
        (["--api-key", "xyz"], ["xyz"]),
        (["--wandb_key=0badcafe"], ["0badcafe"]),
        (["HF_TOKEN=quux"], ["quux"]),
        (["--hfToken", "quux"], ["quux"]),
        (["hf_access_token=quux"], ["quux"]),
        (["--password", "1234"], ["1234"]),
        (["--db=postgres://ada:love1815@db:5432/runs"], ["ada", "love1815"]),
        (["https://deadbeef@example.org/repo.git"], ["deadbeef"]),
        (["AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI"], ["wJalrXUtnFEMI"]),
        (["--note", "AKIAIOSFODNN7EXAMPLE"], ["AKIAIOSFODNN7EXAMPLE"]),
        (["--header", "Authorization: Bearer abcdef123456"], ["abcdef123456"]),
        (["--header", "authorization: basic YWRhOmxvdmU="], ["YWRhOmxvdmU="]),
        (["--url", "https://s3/x?X-Amz-Signature=0af1&n=3"], ["0af1"]),
        (['--config={"api_key": "zzz", "layers": 4}'], ["zzz"]),
        (["-c", "export HF_TOKEN=quux; python t.py --api-key xyz --steps 3"], ["quux", "xyz"]),
        (["hf_ABCDEFGHIJKLMNOPQRSTUV"], ["hf_ABCDEFGHIJKLMNOPQRSTUV"]),
    ],
)
def test_a_secret_is_taken_out_of_words_and_of_the_line_that_they_make(words, secrets):
    argv = ["python3", "train.py", *words, "--steps", "12"]
    for told in (redacted_argv(argv), [redacted(shlex.join(argv))]):
        for secret in secrets:
            assert not any(secret in word for word in told)
        assert any(REDACTED in word for word in told)
    assert redacted_argv(argv)[-2:] == ["--steps", "12"]


@pytest.mark.parametrize(
    "words",
    [
        ["num_experts_per_token=8", "--max_tokens", "4096", "--tokens_per_expert=12"],
        ["tokenizer_path=assets/tokenizer.model", "--pad-token", "<pad>", "eos_token=</s>"],
        ["--key-dim=64", "--sort_key", "loss", "prng_key=0", "--keys", "a,b"],
        ["run_name=a:b", "gs://bucket/data", "docker://image@sha256:0af1", "git@host:x/y"],
        ["--xla_flags=--xla_dump_to=/tmp/d", "--author", "ada", "PWD=/home/ada", "--mode", "basic"],
    ],
)
def test_what_is_no_secret_is_kept(words):
    assert redacted_argv(["train.py", *words]) == ["train.py", *words]
    assert redacted(shlex.join(words)) == shlex.join(words)


def test_what_was_taken_out_stays_so():
    argv = redacted_argv(["--api-key", "xyz", "HF_TOKEN=quux"])
    assert redacted_argv(argv) == argv == ["--api-key", REDACTED, f"HF_TOKEN={REDACTED}"]


def test_settings_go_by_their_name():
    assert redacted_setting("HF_TOKEN", "quux") == REDACTED
    assert redacted_setting("XLA_FLAGS", "--xla_dump_to=/d") == "--xla_dump_to=/d"
    assert redacted_setting("CACHE", "s3://u:p@h/b") == f"s3://{REDACTED}@h/b"


def test_a_record_is_taken_whole():
    record = {
        "command": "python train.py --api-key xyz",
        "processes": [{"argv": ["train.py", "--password", "abc"], "exit_code": 1}],
    }
    assert redacted_record(record) == {
        "command": f"python train.py --api-key {REDACTED}",
        "processes": [{"argv": ["train.py", "--password", REDACTED], "exit_code": 1}],
    }
