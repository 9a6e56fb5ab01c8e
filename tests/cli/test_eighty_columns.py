"""Every command in 80 columns, with nothing on stderr where nobody watches."""

from __future__ import annotations

import re
import shutil

import click
import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import host, line, metadata, thunk, xspace
from click.testing import CliRunner, Result
from rich.cells import cell_len

from moeprof.cli.main import COMMANDS, group
from moeprof.cli.memory import COMMANDS as MEMORY_COMMANDS

LONG = "jit(train_step)/jit(main)/transpose(jvp(decoder))/moe_layers/while/body/attention/" * 3
PROGRAM = hlo_proto(
    computation("main", op("add", "add", "f32[8]", op_name=f"{LONG}add")),
)
LOG = (
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
    "allocate 43368046592 bytes."
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of four steps with long names, one half as fast; a log of a process that failed."""
    made = tmp_path_factory.mktemp("in")
    for name, length in (("base", 1000), ("new", 2000)):
        work = [thunk("add", 10_000 * place + 10, length, run_id=place) for place in range(4)]
        data = xspace(metadata(p7=PROGRAM), host(line("pool", *work)))
        (made / f"{name}.xplane.pb").write_bytes(data)
    (made / "train.log").write_text(LOG)
    return made


@pytest.fixture
def call(folder, monkeypatch):
    """Run a command in the folder of the inputs, in 80 columns."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> Result:
        return CliRunner().invoke(group, list(words), catch_exceptions=False, prog_name="moeprof")

    return run


RUNS = [
    "analyze base.xplane.pb",
    "analyze base.xplane.pb --only ops --only breakdown --only one_step",
    "compare base.xplane.pb new.xplane.pb --fail-on step>+1000%",
    "report base.xplane.pb -o page.html",
    "export base.xplane.pb --tables tables",
    "memory --model deepseek_v3 --hardware mi355x --ep 8 --fsdp 8",
    "memory --model qwen3_30b_a3b --world megatron --ep 8 --pdbs 1,2,4 --seq 8192",
    "memory search --model mixtral_8x7b --devices 16 --what-if",
    "memory explain-oom train.log --hardware mi355x",
    "memory diff base.xplane.pb new.xplane.pb",
    "pipeline --stages 4 --microbatches 8 --schedule zb-h1 --head-ms 0.3",
    "pipeline --stages 4 --microbatches 8 --schedule all",
    "models",
    "models deepseek_v3",
    "hardware",
    "hardware mi355x",
    "doctor",
]
"""What is run for real. `capture`, `replay` and `view` need a program, JAX or a browser: their own
tests run them, and their help is read here."""
NOT_RUN = {"capture", "replay", "view", "mcp"}
TELLS_MORE = {"export"}
"""Commands whose stderr is documented: one JSON document."""


def too_wide(text: str) -> list[str]:
    """Lines of more than 80 columns. A path at the end of one is never broken: it can be copied."""
    told = (re.sub(r" /\S+$", "", line) for line in text.splitlines())
    return [line for line in told if cell_len(line) > 80]


@pytest.mark.parametrize("words", RUNS)
def test_no_line_is_wider_and_stderr_is_empty(call, words):
    shutil.rmtree("tables", ignore_errors=True)
    done = call(*words.split())
    assert done.exit_code == 0, done.output
    assert done.stdout.strip()
    assert too_wide(done.stdout) == []
    if words.split()[0] not in TELLS_MORE:
        assert done.stderr == ""


def test_every_command_is_run_or_said_not_to_be():
    names = {words.split()[0] for words in RUNS}
    assert names | NOT_RUN == set(COMMANDS)
    assert {words.split()[1] for words in RUNS if words.startswith("memory ")} >= set(
        MEMORY_COMMANDS
    )


@pytest.mark.parametrize(
    "words",
    [[], *([name] for name in COMMANDS), *(["memory", name] for name in MEMORY_COMMANDS)],
    ids=" ".join,
)
def test_help_fits_and_has_an_example(call, words):
    done = call(*words, "--help")
    assert too_wide(done.stdout) == []
    assert "Example" in done.stdout


def test_a_wide_terminal_shows_more_columns(call, monkeypatch):
    """COLUMNS, where it is exported, says how wide it is, of a pipe too; else a pipe has no end."""
    narrow = call("analyze", "base.xplane.pb").stdout
    for given in ("79", "8"):  # no table is made for less than 80
        monkeypatch.setenv("COLUMNS", given)
        assert call("analyze", "base.xplane.pb").stdout == narrow
    monkeypatch.delenv("COLUMNS")
    ops = ("analyze", "base.xplane.pb", "--only", "ops")
    endless = call(*ops).stdout
    for given in ("none", "", "0"):  # no width
        monkeypatch.setenv("COLUMNS", given)
        assert call(*ops).stdout == endless
    monkeypatch.setenv("COLUMNS", "200")
    piped = call("analyze", "base.xplane.pb").stdout
    assert max(map(len, piped.splitlines())) > 80
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert click.unstyle(call("analyze", "base.xplane.pb").stdout) == piped


def test_piped_output_has_every_column_and_name_whole(call, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    out = call("analyze", "base.xplane.pb", "--only", "ops").stdout
    heading, row = out[out.index("\nop  ") + 1 :].splitlines()[:2]
    assert heading.split()[:4] == ["op", "component", "per", "step"]  # what matters comes first
    assert "op name" in heading
    assert f"{LONG}add" in row
    assert "Too wide" not in out
    prose = [line for line in out.splitlines() if line not in (heading, row)]
    assert max(map(len, prose)) <= 80
    compared = call("compare", "base.xplane.pb", "new.xplane.pb").stdout
    assert "…" not in compared


def test_the_columns_that_answer_a_question_are_the_last_to_go(call):
    out = call("analyze", "base.xplane.pb", "--only", "ops").stdout
    heading = next(line for line in out.splitlines() if line.startswith("op "))
    wanted = ("component", "per step", "share", "evidence", "confidence", "source")
    assert all(name in heading for name in wanted)
    left_out = " ".join(out.partition("Too wide for this terminal: ")[2].split())
    assert "op name" in left_out
