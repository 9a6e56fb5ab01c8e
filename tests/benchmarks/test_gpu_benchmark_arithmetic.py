"""What the measurements on GPUs make of times and counts, against values worked out by hand."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from moeprof.kernels import reset_runtime


class Clock:
    """A contestant whose calls take the seconds it is told, one after the other."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)
        self.calls: list[int] = []

    def __call__(self, calls: int) -> float:
        self.calls.append(calls)
        return self.seconds[min(len(self.calls), len(self.seconds)) - 1]


def test_contestants_take_turns_and_medians_are_theirs(program):
    timing = program("gpu.timing")
    # Two calls to warm up, then the samples: 1, 5 and 3 s have the median 3 and quartiles 2 and 4.
    ours = Clock(9, 1, 1, 5, 3)
    found, failed = timing.take_turns([timing.Contestant("ours", ours)], 3, 1.0, 100.0)
    assert failed == {}
    assert found["ours"] == timing.Timing(3, 2, 4, 3, 3)
    assert ours.calls == [1, 2, 1, 1, 1]


def test_a_slow_contestant_has_fewer_samples_and_a_fast_one_more_calls(program):
    timing = program("gpu.timing")
    slow, fast = Clock(2.0), Clock(0.001)
    pair = [timing.Contestant("slow", slow), timing.Contestant("fast", fast)]
    found, _ = timing.take_turns(pair, 20, 0.01, 1.0)
    assert found["slow"].samples == 3  # never fewer, though 3 × 2 s are more than 1 s
    assert found["fast"].samples == 20
    assert found["fast"].calls == 20 * 10  # 0.01 s hold ten calls of 0.001 s


def test_a_contestant_that_fails_is_named_and_the_others_go_on(program):
    timing = program("gpu.timing")

    def no_room(calls: int) -> float:
        raise MemoryError("RESOURCE_EXHAUSTED: 7 GiB\nmore text")

    pair = [timing.Contestant("big", no_room), timing.Contestant("small", Clock(1.0))]
    found, failed = timing.take_turns(pair, 3, 1.0, 10.0)
    assert failed == {"big": "MemoryError: RESOURCE_EXHAUSTED: 7 GiB"}
    assert list(found) == ["small"]


def test_a_contestant_that_fails_later_has_no_timing(program):
    timing = program("gpu.timing")
    calls = []

    def gone(count: int) -> float:
        calls.append(count)
        if len(calls) == 4:
            raise RuntimeError("gave no sample")
        return 1.0

    pair = [timing.Contestant("gone", gone), timing.Contestant("there", Clock(1.0))]
    found, failed = timing.take_turns(pair, 5, 1.0, 100.0)
    assert failed == {"gone": "RuntimeError: gave no sample"}
    assert list(found) == ["there"]
    assert len(calls) == 4  # and is not asked again


def test_rows_that_cross_the_link(program):
    exchange = program("gpu.exchange_load")
    load = exchange.Load(tokens=3, hidden=4, experts=4, top_k=2)
    # Ranks own experts 0 1 and 2 3. Rank 0: a token for itself, one for rank 1, one for both;
    # rank 1: two for rank 0, one for both.
    experts = np.array([[0, 1], [2, 3], [1, 2], [0, 1], [1, 0], [3, 0]])
    tokens, pairs = exchange.rows_between(experts, load, 2)
    assert tokens.tolist() == [[2, 2], [3, 1]]
    assert pairs.tolist() == [[3, 3], [5, 1]]
    # Tokens: rank 0 sends 2 and gets 3, rank 1 the other way round.
    assert exchange.most_leaving(tokens) == 3
    assert exchange.most_leaving(pairs) == 5


def test_bytes_over_time(program):
    exchange, timing = program("gpu.exchange_load"), program("gpu.timing")
    load = exchange.Load(tokens=4096)
    assert load.row_bytes == 14336
    op = exchange.Op("step", lambda times: lambda: None, 4000, 4096, is_step=True)
    # 20 repetitions in 8 ms are 400 µs; there and back are 2 · 4000 · 14336 B = 114.688 MB.
    row = exchange.row(op, timing.Timing(8e-3, 7e-3, 9e-3, 20, 20), 20, load)
    assert row["us"] == 400
    assert row["us_quartiles"] == [350, 450]
    assert row["payload_bytes_per_direction"] == 114_688_000
    assert row["payload_GB_s"] == 286.72
    assert row["wire_GB_s"] == 293.6


def test_every_token_has_distinct_experts(program):
    exchange = program("gpu.exchange_load")
    load = exchange.Load(tokens=50, experts=16, top_k=8)
    experts = exchange.routing(load, 2)
    assert experts.shape == (100, 8)
    assert experts.min() == 0
    assert experts.max() == 15
    assert all(len(set(row)) == 8 for row in experts.tolist())


def test_rate_counts_used_rows(program):
    gemm, timing = program("gpu.grouped_gemm"), program("gpu.timing")
    shape = gemm.SHAPES["e32_k7168_n2048"]
    assert sum(shape.group_lens) == 32768
    assert shape.flops == 2 * 32768 * 7168 * 2048 == 962_072_674_304
    assert gemm.rate(shape, timing.Timing(1.3e-3, 0, 0, 20, 20)) == pytest.approx(740.06, abs=0.01)


@pytest.mark.parametrize(
    ("error", "timed", "right"),
    [(1.7e-3, True, True), (1.7e-3, False, False), (0.1, True, False), (None, True, False)],
)
def test_a_pass_counts_only_where_ours_ran_and_was_right(program, error, timed, right):
    timings = {"moeprof": {}} if timed else {"dense_torch": {}}
    row = {"relative_error": error, "timings": timings}
    assert program("gpu.grouped_gemm").is_right(row) is right
    assert not program("gpu.grouped_gemm").is_right({**row, "relative_error": float("nan")})


def test_a_wrong_product_has_a_large_error(program):
    gemm = program("gpu.gemm_jax")
    shape = program("gpu.gemm_shapes").SMOKE_SHAPES["smoke"]
    operands = gemm.Operands(shape)
    right = gemm.calls_of(jax.lax.ragged_dot, operands)
    assert gemm.worst_error(operands, shape, right) < 4e-3
    wrong = gemm.calls_of(lambda a, b, lens: jax.lax.ragged_dot(a, b, lens[::-1]), operands)
    assert gemm.worst_error(operands, shape, wrong) > 0.1
    nan = {**right, "dB": lambda: (right["dB"]()[0] * np.nan,)}
    assert np.isnan(gemm.worst_error(operands, shape, nan))


def test_the_routed_experts_dominate_the_model_of_the_comparison(program):
    setting = program("gpu.ab_setting")
    assert setting.MODEL["top_k"] * 3 * 2048 * 1408 == 69_206_016
    assert setting.projected_largest("dense-cf4", 2) < setting.projected_largest("dense-cf1.25", 2)
    # One device holds all experts, so less is left for tokens.
    assert 2 < setting.projected_largest("dense-cf4", 1) < setting.projected_largest("dense-cf4", 2)


def test_settings_change_by_name(program):
    convergence = program("gpu.convergence")
    found = convergence.changed(convergence.SMOKE, ["steps=7", "learning_rate=0.5"])
    assert (found.steps, found.learning_rate, found.hidden) == (7, 0.5, 32)


def test_windows_lie_within_the_text(program):
    setting = program("gpu.convergence_setting")
    batch = next(setting.windows(np.arange(50), 200, 48, seed=0))
    assert batch.shape == (200, 49)
    assert set(batch[:, 0]) == {0, 1}
    assert (np.diff(batch, axis=1) == 1).all()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("========= ERROR SUMMARY: 0 errors\n", 0),
        ("========= ERROR SUMMARY: 12 errors\n", 12),
        ("========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)\n", 3),
        ("killed before its summary\n", None),
    ],
)
def test_what_a_sanitizer_counted(program, text, found):
    assert program("gpu.sanitize").read_summary(text) == found


CLEAN = "ok: 60 of 60 rounds\n========= ERROR SUMMARY: 0 errors\n"
COUNTED = "ok: 60 of 60 rounds\n========= ERROR SUMMARY: 3 errors\n"
UNSAID = "Error: device not supported\n"


@pytest.mark.parametrize(
    ("which", "text", "status", "wrong"),
    [
        ("kernels", CLEAN, 0, ""),
        ("kernels", COUNTED, 86, "expected nothing to be counted, found 3"),
        ("kernels", CLEAN, 1, 'expected the program to end with "ok", found status 1'),
        (
            "kernels",
            CLEAN.replace("ok", "FAILED"),
            0,
            'expected the program to end with "ok", found status 0',
        ),
        ("kernels", UNSAID, 1, "expected a summary of the sanitizer, found none, status 1"),
        ("kernels", CLEAN, None, "expected it to end within its limit"),
        ("planted", COUNTED, 86, ""),
        ("planted", CLEAN, 0, "expected the planted fault to be counted, found 0"),
        ("planted", UNSAID, 255, "expected the planted fault to be counted, found None"),
    ],
)
def test_a_sanitizer_is_believed_only_where_it_counted(program, which, text, status, wrong):
    sanitize = program("gpu.sanitize")
    watched = sanitize.planted()[0] if which == "planted" else sanitize.kernels(60)[0]
    assert sanitize.verdict(watched, sanitize.read_summary(text), status, text) == wrong


def test_rounds_are_those_that_were_done(program):
    sanitize = program("gpu.sanitize")
    assert sanitize.rounds_done("text\nok: 25 of 60 rounds, 225 products, 0 wrong, 9.0 s\n") == 25
    assert sanitize.rounds_done("FAILED: 25 of 60 rounds, 1 wrong\n") is None


def test_nothing_is_clean_after_a_tool_that_missed_what_was_planted(program):
    sanitize = program("gpu.sanitize")
    missed = {"tool": "racecheck", "is_planted": True, "wrong": "missed", "is_clean": False}
    races = {"tool": "racecheck", "is_planted": False, "wrong": "", "is_clean": True}
    accesses = {**races, "tool": "memcheck"}
    assert not sanitize.unless_blind(races, [missed, races])["is_clean"]
    assert sanitize.unless_blind(accesses, [missed, accesses]) == accesses


@pytest.mark.parametrize(
    ("end", "status", "found"),
    [("exit 86", 86, 2), ("exit 0", 0, 2), ("sleep 30", None, 2)],
)
def test_a_sanitizer_is_run_to_its_end_or_its_limit(
    program, tmp_path, monkeypatch, end, status, found
):
    sanitize = program("gpu.sanitize")
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(f"#!/bin/sh\necho '========= ERROR SUMMARY: 2 errors'\n{end}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    row = sanitize.watch(sanitize.kernels(60)[0], tmp_path, tmp_path / "log", 1.0)
    assert (row["status"], row["found"], row["is_clean"]) == (status, found, False)


@pytest.mark.parametrize(
    ("which", "target"), [(0, "dispatch"), (1, "cached_dispatch"), (2, "combine")]
)
def test_no_call_of_a_chain_is_dropped(program, which, target):
    exchange = program("gpu.exchange_ops")
    calls: list = []

    class Recorded(exchange.Exchanges):
        def chain(self, op, rows, *others, how):
            calls.append((op, rows, others, how))
            return super().chain(op, rows, *others, how=how)

    exchanges = Recorded(program("gpu.exchange_load").SMOKE)
    try:
        exchanges.ours()
        op, rows, others, how = calls[which]
        compiled = exchanges.mapped(exchange.looped(op, 5, how)).lower(rows, *others).compile()
    finally:
        reset_runtime()
    assert compiled.as_text().count(f'custom_call_target="moeprof_moe_{target}_inproc"') == 5
