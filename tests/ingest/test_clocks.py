import numpy as np
import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import event, host, line, metadata, thunk, xspace
from hypothesis import given
from hypothesis import strategies as st

from moeprof.analyzers import analyze
from moeprof.errors import TableError
from moeprof.ingest import open_run
from moeprof.ingest.joining.clock_fit import fit_clock
from moeprof.tables.clock import is_comparable, to_common
from moeprof.tables.trace import HostClock, TraceMeta

US, S = 1000, 10**9
STEP_NS = 10_000 * US


def program() -> bytes:
    exchanges = [op(f"a2a.{i}", "all-to-all", "f32[8]") for i in range(4)]
    return hlo_proto(computation("main", *exchanges))


def calls(late_ns: int, skew_ns: int, steps=range(3), module: int = 7, noise=()):
    """4 all-to-alls of each step: entered at t + late, over at t + 550 us, on a skewed clock."""
    noise = iter(noise)
    for step in steps:
        for i in range(4):
            at = 1 * S + step * STEP_NS + i * 2000 * US
            end = at + 550 * US + next(noise, 0)
            yield thunk(
                f"a2a.{i}",
                at + late_ns + skew_ns,
                end - at - late_ns,
                run_id=step,
                program_id=module,
            )


def write(folder, name, work, module=7, proto=None):
    folder.mkdir(parents=True, exist_ok=True)
    planes = metadata(**{f"p{module}": proto or program()}), host(line("pool", *work))
    (folder / f"{name}.xplane.pb").write_bytes(xspace(*planes, hostnames=(name,)))


def check(trace, name):
    return next(c for c in trace.trust if c.check == name)


@pytest.fixture
def session(tmp_path):
    return tmp_path / "plugins" / "profile" / "s"


def test_a_skewed_clock_is_found_on_the_ends_of_collectives(session):
    write(session, "a", calls(0, 0))
    write(session, "b", calls(400 * US, 3_200_000 * US))
    trace = open_run(session)
    a, b = trace.meta.clocks
    assert (a.host, a.offset_ns, b.host, b.pairs) == ("a", 0, "b", 12)
    assert abs(b.offset_ns - 3_200_000 * US) <= 10 * US
    assert check(trace, "clocks").verdict == "ok"
    assert "b +3.200 s (residual 0 ns)" in check(trace, "clocks").detail
    # a step lasts from a's first start to the common end, whatever the clocks say
    assert trace.steps["duration_ns"].tolist() == [6550 * US] * 3


def test_the_late_host_is_the_straggler_whatever_its_clock_says(session):
    write(session, "a", calls(0, 0))
    write(session, "b", calls(400 * US, 3_200_000 * US))
    findings = analyze(open_run(session), ["stragglers", "step_time"])
    worst = findings["stragglers"].table.iloc[0]
    assert (worst["host"], worst["waited_for_ns"]) == ("b", 4 * 400 * US)  # 4 calls a step
    assert not any("not aligned" in note for note in findings["step_time"].notes)


def test_collectives_of_programs_with_other_ids_are_matched_by_name(session):
    write(session, "a", calls(0, 0))
    write(session, "b", calls(0, 5 * S, module=9), module=9)
    trace = open_run(session)
    assert trace.meta.clocks[1].offset_ns == 5 * S
    assert set(trace.events["module"]) == {7}  # one program, one id


def test_programs_that_share_an_id_by_accident_are_kept_apart(session):
    other = hlo_proto(computation("main", op("a2a.0", "add", "f32[8]")))
    write(session, "a", calls(0, 0))
    write(session, "b", [thunk("a2a.0", 100, 50)], proto=other)
    trace = open_run(session)
    assert set(trace.events["module"]) == {7, 8}
    assert trace.modules.set_index("module")["instructions"].to_dict() == {7: 4, 8: 1}
    assert any("1 program(s) carry ids of other programs" in note for note in trace.meta.notes)


def test_without_common_collectives_nothing_is_aligned_and_it_is_said(session):
    write(session, "a", calls(0, 0, steps=range(3)))
    write(session, "b", calls(0, 5 * S, steps=range(2)))  # which two of the three is not known
    trace = open_run(session)
    assert trace.meta.clocks == ()
    assert check(trace, "clocks").verdict == "warn"
    assert "no statement across hosts" in check(trace, "clocks").detail


def test_steps_that_the_script_numbers_are_matched_by_their_number(session):
    def markers(steps, skew_ns):
        for step in steps:
            at = 1 * S + step * STEP_NS + skew_ns
            yield event("train", at - 90, 80, step_num=step, _r=1)
            yield event("X::Execute (jit_step)", at - 50, 2, run_id=step)

    write(session, "a", [*calls(0, 0, range(3)), *markers(range(3), 0)])
    write(session, "b", [*calls(0, 5 * S, range(1, 3)), *markers(range(1, 3), 5 * S)])
    clocks = open_run(session).meta.clocks
    assert [(c.offset_ns, c.pairs) for c in clocks] == [(0, 0), (5 * S, 8)]


def test_ends_that_scatter_as_much_as_the_collectives_last_align_nothing(session):
    noise = np.random.default_rng(0).integers(-500, 500, 12) * US
    write(session, "a", calls(0, 0))
    write(session, "b", calls(0, 5 * S, noise=noise.tolist()))
    trace = open_run(session)
    assert trace.meta.clocks == ()
    assert "collectives last" in check(trace, "clocks").detail


def test_one_host_has_one_clock(session):
    write(session, "a", calls(0, 0))
    assert check(open_run(session), "clocks").detail == "one host, one clock"


def test_drift_is_found_with_late_ends_among_the_moments():
    at = np.arange(0, 60 * S, 60 * S // 600)
    rng = np.random.default_rng(1)
    ahead = 3_200_000_000 + (at * 50e-6).astype(np.int64) + rng.normal(0, 2000, 600).astype(int)
    ahead[::10] += rng.integers(0, 10**6, 60)
    fit = fit_clock(at, ahead)
    assert fit.drift_ppb == pytest.approx(50_000, rel=1e-3)
    assert abs(fit.offset_ns - 3_200_000_000) <= 10 * US


def test_noise_alone_is_no_drift():
    at = np.arange(12) * 10**6
    ahead = 5000 + np.array([0, 3, -2, 1, 0, -3, 2, 0, 1, -1, 0, 2])
    fit = fit_clock(at, ahead)
    assert fit.drift_ppb == 0.0
    assert abs(fit.offset_ns - 5000) <= 1


def test_too_few_moments_tell_nothing():
    assert fit_clock(np.arange(2), np.arange(2)) is None


@given(
    st.integers(-(10**15), 10**15),
    st.integers(-100_000, 100_000),
    st.integers(8, 40),
    st.integers(10**3, S),
)
def test_an_exact_line_is_found_to_rounding(offset, drift_ppb, moments, apart):
    at = np.arange(moments, dtype=np.int64) * apart
    ahead = offset + np.rint(drift_ppb * 1e-9 * at).astype(np.int64)
    fit = fit_clock(at, ahead)
    line = fit.offset_ns + fit.drift_ppb * 1e-9 * at.astype(float)
    assert np.abs(line - ahead).max() <= 4 + fit.residual_ns


def meta(*clocks):
    return TraceMeta("r", "gpu", ("a", "b"), 2, "", 0, clocks=clocks)


def test_stamps_are_put_on_the_common_clock():
    aligned = meta(HostClock("a", 0, 0.0, 0, 0), HostClock("b", 500, 2000.0, 0, 2))
    at = np.array([1_000_000_000], np.int64)
    assert to_common(aligned, "a", at).tolist() == [1_000_000_000]
    assert to_common(aligned, "b", at).tolist() == [1_000_000_000 - 500 - 2000]


def test_clocks_that_are_not_aligned_give_no_common_time():
    assert not is_comparable(meta())
    with pytest.raises(TableError, match="clocks of a, b are not aligned"):
        to_common(meta(), "a", np.zeros(1, np.int64))
    with pytest.raises(TableError, match="no host is named 'c'; the trace has: a, b"):
        to_common(meta(), "c", np.zeros(1, np.int64))
