"""Programs whose ids are of another compilation, as a persistent compilation cache leaves them."""

from pathlib import Path

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Ref, event, host, line, metadata, thunk, xspace

from moeprof.analyzers.questions.memory import memory
from moeprof.ingest import open_run


def proto(*ops, shape="f32[64]"):
    return hlo_proto(computation("main", *(op(name, "add", shape) for name in ops)))


def opened(tmp_path, *planes):
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(xspace(*planes))
    return open_run(file)


def law(trace):
    return next(own for own in trace.trust if own.check == "program_ids")


def runs_of(name, program_id, *ops, start=1000, runs=3):
    """Three executions, 1,000 ns apart, of ops of 100 ns each."""
    return [
        thunk(
            *(one, start + 1000 * run + 100 * place, 100),
            **{"program_id": program_id, "run_id": run + 40, "hlo_module": Ref(name)},
        )
        for run in range(runs)
        for place, one in enumerate(ops)
    ]


WORK = runs_of("jit_train", 31, "tanh.1", "dot.2")


def test_an_id_of_no_program_is_joined_by_the_name(tmp_path):
    programs = metadata(
        {102: "jit_train", 4: "jit_other"}, p102=proto("tanh.1", "dot.2"), p4=proto("tanh.1")
    )
    trace = opened(tmp_path, programs, host(line("pool", *WORK)))
    assert set(trace.events["module"]) == {102}
    assert (trace.events["instruction"] >= 0).all()
    found = law(trace)
    assert (found.verdict, found.expected, found.found) == ("warn", 6, 0)
    assert "6 of 6 events (100.0 %)" in found.detail
    assert "jit_train" in found.detail
    assert not found.withholds_any


def test_an_id_of_another_program_is_joined_by_the_name(tmp_path):
    programs = metadata(
        {48: "jit_train", 31: "jit_iota"}, p48=proto("tanh.1", "dot.2"), p31=proto("tanh.1")
    )
    trace = opened(tmp_path, programs, host(line("pool", *WORK)))
    assert set(trace.events["module"]) == {48}
    assert law(trace).verdict == "warn"


def test_another_program_under_the_id_is_never_used(tmp_path):
    programs = metadata({31: "jit_iota"}, p31=proto("tanh.1", "dot.2"))
    trace = opened(tmp_path, programs, host(line("pool", *WORK)))
    assert (trace.events["instruction"] == -1).all()
    assert 31 not in set(trace.events["module"])
    assert trace.executions["run_id"].tolist() == [40, 41, 42]  # steps are there all the same
    found = law(trace)
    assert found.verdict == "warn"
    assert "jit_train (id 31, which is jit_iota's): no program of that name" in found.detail


@pytest.mark.parametrize(
    ("other", "module"),
    [
        (proto("tanh.1"), 60),  # it lacks dot.2
        (proto("tanh.1", "dot.2", "add.3"), 31),  # it may be either: not known
    ],
)
def test_of_two_programs_of_the_name_the_one_with_all_ops_is_used(tmp_path, other, module):
    names = {60: "jit_train", 61: "jit_train"}
    programs = metadata(names, p60=proto("tanh.1", "dot.2"), p61=other)
    trace = opened(tmp_path, programs, host(line("pool", *WORK)))
    assert set(trace.events["module"]) == {module}
    is_known = bool((trace.events["instruction"] >= 0).all())
    assert is_known == (module == 60)
    if not is_known:
        assert "2 program(s) of that name, 2 of them have all its ops" in law(trace).detail


def test_one_id_of_two_programs_is_told_apart_by_their_names(tmp_path):
    others = runs_of("jit_eval", 31, "exp.7", start=1500)
    programs = metadata(
        {31: "jit_eval", 90: "jit_train"}, p31=proto("exp.7"), p90=proto("tanh.1", "dot.2")
    )
    trace = opened(tmp_path, programs, host(line("pool", *WORK, *others)))
    by_op = dict(zip(trace.events["op"], trace.events["module"], strict=True))
    assert by_op == {"tanh.1": 90, "dot.2": 90, "exp.7": 31}


def test_waits_are_of_the_same_program(tmp_path):
    reduce = thunk("all-reduce.1", 1000, 500, program_id=31, hlo_module=Ref("jit_train"))
    wait = event("Rendezvous", 1100, 300)
    programs = metadata({102: "jit_train"}, p102=proto("all-reduce.1"))
    trace = opened(tmp_path, programs, host(line("pool", reduce, wait)))
    assert set(trace.events["module"]) == {102}
    assert set(trace.rendezvous["op"]) == {"all-reduce.1"}


def test_names_that_agree_are_good_and_no_name_is_unchecked(tmp_path):
    programs = metadata({31: "jit_train"}, p31=proto("tanh.1", "dot.2"))
    trace = opened(tmp_path, programs, host(line("pool", *WORK)))
    assert (law(trace).verdict, law(trace).found) == ("ok", 6)
    bare = opened(tmp_path, metadata(p7=proto("add.1")), host(line("p", thunk("add.1", 10, 5))))
    assert law(bare).verdict == "unchecked"


def test_programs_of_one_name_under_true_ids_stay_as_they_are(tmp_path):
    """Compiled for two shapes: nothing says that their ids are of another compilation."""
    both = [*WORK, *runs_of("jit_train", 33, "tanh.1", "dot.2", start=1500)]
    names = {31: "jit_train", 33: "jit_train"}
    programs = metadata(
        names, p31=proto("tanh.1", "dot.2"), p33=proto("tanh.1", "dot.2", shape="f32[8]")
    )
    trace = opened(tmp_path, programs, host(line("pool", *both)))
    assert set(trace.events["module"]) == {31, 33}
    assert law(trace).verdict == "ok"


RECORDED = Path(__file__).parent.parent / "data" / "warm_cache"


def test_a_program_from_the_compilation_cache_of_jax_is_known():
    """Captured before and after it was in the cache: 126 events of 3 steps, one compiled program.

    The events have id 30 in both; in the second capture that is another program's.
    """
    cold, warm = (open_run(RECORDED / f"{name}.xplane.pb.gz") for name in ("cold", "warm"))
    assert law(cold).verdict == "ok"
    assert (law(warm).verdict, law(warm).expected, law(warm).found) == ("warn", 126, 0)
    for trace in (cold, warm):
        assert len(trace.events) == 126
        assert (trace.events["instruction"] >= 0).all()
        assert trace.steps["step"].tolist() == [
            0,
            1,
            2,
        ]  # no call tells which annotation is the first
        assert trace.steps["used"].all()
    ops = [trace.events.groupby("op", observed=True).size().to_dict() for trace in (cold, warm)]
    assert ops[0] == ops[1]
    needs = [
        {own.metric: own.value for own in memory(trace).headline}["program_peak"]
        for trace in (cold, warm)
    ]
    assert needs == [1_437_716, 1_437_716]
