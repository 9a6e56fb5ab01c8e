"""Memory and hints of the H100 captures, against what XLA stated when they were made."""

import pytest

from moeprof.analyzers.questions.hints import hints
from moeprof.analyzers.questions.memory import memory

PAIR = "maxtext_h100x2_ds_ep2_cf125"


@pytest.fixture
def ragged(opened):
    """The plain-JAX step with ragged_dot and ragged_all_to_all."""
    return opened("h100x2_moe_ragged.xplane.pb")


@pytest.fixture
def commandbuf(opened):
    """The MaxText step with command buffers."""
    return opened(f"{PAIR}.xplane.pb.gz")


@pytest.fixture
def plain(opened):
    """The same without."""
    return opened(f"{PAIR}_nocmdbuf.xplane.pb.gz")


def figures(analysis):
    return {metric.metric: metric.value for metric in analysis.headline}


def by_content(analysis):
    return analysis.table.groupby("content")["size_bytes"].sum()


def test_memory_of_the_ragged_step(ragged):
    """memory_analysis of the run: arguments, temp, alias; peaks of its allocator by device."""
    found = memory(ragged)
    known = figures(found)
    assert known["argument"] == 1_511_636_992
    assert known["temp"] == 4_617_467_776
    # + results 1,511,620,788 of which 1,511,620,608 reuse arguments
    assert known["program_peak"] == 1_511_636_992 + 4_617_467_776 + 180
    assert known["allocator_peak"] == 6_246_547_712
    assert found.table["size_bytes"].sum() == known["program_peak"]
    # three arrays bf16[16, 32768, 1024] of 16 local experts × the worst-case rows
    assert by_content(found)["dense fallback of ragged dot"] == 3 * 16 * 32768 * 1024 * 2
    # wi and wo [4, 16, 1024, 1024] and [4, 16, 512, 1024], qkv, o, emb, gate, norm, in float32
    weights = 4 * (4 * 16 * 1024 * 1024 + 4 * 16 * 512 * 1024 + 4 * 1024 * 3072)
    weights += 4 * (4 * 1024 * 1024 + 8192 * 1024 + 4 * 1024 * 32 + 4 * 2 * 1024)
    assert by_content(found)["weights"] == weights
    assert by_content(found)["optimizer state"] == 2 * weights  # AdamW's two moments


def test_memory_of_the_maxtext_step(commandbuf):
    """memory_analysis: argument 2,009,196,532, temp 3,898,152,944, total 5,907,350,522 bytes."""
    known = figures(memory(commandbuf))
    assert known["argument"] == 2_009_196_532
    assert known["temp"] == 3_898_152_944
    assert known["program_peak"] == 5_907_350_522
    # the allocator's peak lies 0.1 to 0.2 MB above the program's in every such run
    assert 100_000 < known["allocator_peak"] - known["program_peak"] < 300_000


def test_hints_on_the_ragged_step(ragged):
    """All exchanges are XLA's one-shot kernel: 4 layers × 6 calls of about 7 ms."""
    table = hints(ragged).table.set_index("hint")
    assert table.index[0] == "slow_ragged_exchange"
    assert set(table.index) == {
        "slow_ragged_exchange", "exposed_exchange", "recomputed_exchange", "dense_ragged_dot",
        "atomic_scatter",
    }  # fmt: skip
    assert 165e6 < table["gain_ns"]["slow_ragged_exchange"] < 172e6
    assert "1 update(s) per peer" in table["evidence"]["slow_ragged_exchange"]
    assert table["gain_bytes"]["dense_ragged_dot"] == 3 << 30


def test_hints_on_the_maxtext_step(commandbuf, plain):
    """EP 2 with a capacity factor: 3 weights gathered forward, 3 for the recomputation."""
    for trace in (commandbuf, plain):
        table = hints(trace).table.set_index("hint")
        assert table["evidence"]["gathered_experts"].startswith("6 all-gather(s)")
        assert "slow_ragged_exchange" not in table.index
        assert "dense_ragged_dot" not in table.index
