from moeprof.ingest.placing.step import Execution
from moeprof.ingest.placing.steps import cut_steps
from moeprof.ingest.planes.record import Launch, Marker

TRAIN, EVAL = 10, 20


def run(module: int, run_id: int, start: int, end: int, *, ops: int = 100, devices: int = 8):
    return Execution(module, run_id, start, end, end - start, ops, devices)


def in_row(*lengths: int, module: int = TRAIN) -> list[Execution]:
    """Executions one after the other, run ids from 0."""
    found, at = [], 0
    for run_id, length in enumerate(lengths):
        found.append(run(module, run_id, at, at + length))
        at += length
    return found


def marker(step: int, start_ns: int, end_ns: int, name: str = "train") -> Marker:
    return Marker(name, step, start_ns, end_ns)


def launch(run_id: int, at_ns: int) -> Launch:
    return Launch(run_id, at_ns)


def test_no_execution_gives_no_step():
    assert cut_steps([], [], [])[0] == []


def test_executions_that_start_at_once_on_two_devices_are_one_step():
    both = [
        run(TRAIN, 10 * step + device, 100 * step, 100 * step + 40 + device, devices=1)
        for step in range(4)
        for device in range(2)
    ]
    steps = cut_steps(both, [], [])[0]
    assert [(s.start_ns, s.end_ns, len(s.runs)) for s in steps] == [
        (100 * step, 100 * step + 41, 2) for step in range(4)
    ]


def test_markers_name_the_steps_of_the_runs_launched_in_them():
    # the host is ahead: both launches lie before the first run ends
    markers = [marker(3, 0, 10), marker(4, 10, 20)]
    launches = [launch(0, 5), launch(1, 15)]
    steps, how, *_ = cut_steps(in_row(1000, 1000), markers, launches)
    assert [(s.step, s.start_ns, s.end_ns) for s in steps] == [(3, 0, 1000), (4, 1000, 2000)]
    assert how == "steps from 2 annotation(s) 'train'"


def test_one_annotation_around_a_loop_is_not_used():
    executions = [
        *in_row(*[100] * 10),
        *(run(EVAL, 50 + i, 150 * i, 150 * i + 20) for i in range(6)),
    ]
    launches = [launch(i, 5 + i) for i in range(10)]
    steps, how, *_ = cut_steps(executions, [marker(0, 0, 100)], launches)
    assert len(steps) == 10
    assert how.endswith("(annotations found: 1, not used)")


def test_a_marker_without_device_work_is_listed_and_not_used():
    markers = [marker(0, 0, 10), marker(1, 10, 20), marker(2, 20, 30)]
    steps, *_ = cut_steps(in_row(100, 100), markers, [launch(0, 5), launch(1, 25)])
    assert [(s.step, s.reason) for s in sorted(steps, key=lambda s: s.step)] == [
        (0, ""),
        (1, "no device work in it"),
        (2, ""),
    ]


def test_a_module_of_every_step_belongs_to_it_and_evaluation_does_not():
    update = 30
    executions = []
    for i in range(4):
        executions.append(run(TRAIN, i, 100 * i, 100 * i + 60))
        executions.append(run(update, 10 + i, 100 * i + 60, 100 * i + 80))
    executions.append(run(EVAL, 99, 280, 299))
    steps, *_ = cut_steps(executions, [], [])
    assert [s.end_ns - s.start_ns for s in steps] == [80, 80, 80, 80]


def test_compile_warm_up_and_cut_steps_are_dropped_with_a_reason():
    executions = in_row(450, 200, 201, 199, 200, 70)
    executions[-1] = run(TRAIN, 5, 1250, 1320, ops=35)
    steps, *_ = cut_steps(executions, [], [])
    assert [bool(s.reason) for s in steps] == [True, False, False, False, False, True]
    assert steps[0].reason.startswith("warm-up: 2.2 × the median")  # 450 / 200
    assert steps[-1].reason == "cut by the end of the capture: 35 of 100 ops"


def test_a_step_in_which_the_host_compiled_is_dropped():
    markers = [marker(0, 0, 10), marker(1, 10, 20)]
    steps, *_ = cut_steps(in_row(100, 100), markers, [launch(0, 5), launch(1, 15)], [7])
    assert [s.reason for s in steps] == ["compiled in it", ""]


def test_a_step_that_some_devices_lack_is_dropped():
    executions = [run(TRAIN, 0, 0, 100), run(TRAIN, 1, 100, 200, devices=5)]
    steps, *_ = cut_steps(executions, [], [])
    assert steps[1].reason == "work of 5 of 8 devices"


def test_the_annotation_that_fits_is_chosen_among_several_names():
    markers = [marker(0, 0, 100, "epoch"), marker(1, 0, 10), marker(2, 10, 20)]
    steps, how, *_ = cut_steps(in_row(50, 50), markers, [launch(0, 5), launch(1, 15)])
    assert [s.step for s in steps] == [1, 2]
    assert "'train'" in how


def test_annotations_whose_numbers_restart_are_numbered_by_their_place():
    markers = [marker(step, 10 * i, 10 * i + 10) for i, step in enumerate((0, 1, 0, 1))]
    launches = [launch(i, 10 * i + 5) for i in range(4)]
    cut = cut_steps(in_row(50, 50, 50, 50), markers, launches)
    assert [s.step for s in cut.steps] == [0, 1, 2, 3]
    assert not cut.is_as_in_script
    assert cut.how.endswith("the annotations' own numbers do not rise")


def test_annotations_without_a_number_are_numbered_by_their_place():
    markers = [marker(-1, 0, 10), marker(-1, 10, 20)]
    cut = cut_steps(in_row(50, 50), markers, [launch(0, 5), launch(1, 15)])
    assert [s.step for s in cut.steps] == [0, 1]


def test_the_compilation_in_an_annotation_that_is_not_used_drops_no_step():
    executions = in_row(*[100] * 4)
    launches = [launch(i, 5 + i) for i in range(4)]
    cut = cut_steps(executions, [marker(0, 0, 100)], launches, [7])
    assert [s.reason for s in cut.steps] == [""] * 4
    assert cut.doubt.startswith("one annotation 'train' holds 4 executions")


COPY = 30


def test_a_copy_of_the_next_batch_that_runs_ahead_belongs_to_the_step_it_prepares():
    # the batch of step k + 1 is copied while step k runs: none comes after the last step
    executions = [
        run(COPY, 50, 0, 5, ops=8),
        run(TRAIN, 0, 10, 110),
        run(COPY, 51, 20, 25, ops=8),
        run(TRAIN, 1, 110, 210),
        run(COPY, 52, 120, 125, ops=8),
        run(TRAIN, 2, 220, 320),
    ]
    steps, *_ = cut_steps(executions, [], [])
    assert [s.reason for s in steps] == ["", "", ""]
    assert [[module for module, _ in s.runs] for s in steps] == [[COPY, TRAIN]] * 3
    assert [(s.start_ns, s.end_ns) for s in steps] == [(0, 110), (110, 210), (210, 320)]


def test_a_forward_program_before_the_backward_one_is_of_its_step():
    executions = [
        run(EVAL if k % 2 == 0 else TRAIN, k, 100 * k, 100 * k + (40 if k % 2 == 0 else 60))
        for k in range(6)
    ]
    steps, *_ = cut_steps(executions, [], [])
    assert [(s.start_ns, s.end_ns, s.reason) for s in steps] == [
        (0, 160, ""),
        (200, 360, ""),
        (400, 560, ""),
    ]


def test_an_update_that_the_capture_cut_off_is_missed_in_the_last_step():
    executions = [
        run(module, 2 * k + (module == EVAL), 100 * k + at, 100 * k + at + length)
        for k in range(3)
        for module, at, length in ((TRAIN, 0, 60), (EVAL, 60, 30))
    ][:-1]
    steps, *_ = cut_steps(executions, [], [])
    assert [s.reason for s in steps] == ["", "", "cut by the end of the capture: 100 of 200 ops"]


def test_programs_of_the_start_are_not_of_a_single_step():
    executions = [run(COPY, 7, 0, 5), run(TRAIN, 0, 10, 110)]
    steps, *_ = cut_steps(executions, [], [])
    assert [(s.start_ns, s.end_ns) for s in steps] == [(10, 110)]


S = 10**9


def test_compile_ramp_up_and_cut_steps_leave_the_median_of_the_whole_ones():
    # lengths of the annotations: 45 s (compile), 0.2 and 0.4 s (host only: the device is still busy
    # with the step before), four whole steps, 0.7 s (the capture ends)
    lengths = [round(s * S) for s in (45.0, 0.2, 0.4, 2.00, 2.00, 2.01, 1.99, 0.7)]
    starts = [sum(lengths[:i]) for i in range(8)]
    markers = [marker(i, starts[i], starts[i] + lengths[i]) for i in range(8)]
    work = [i for i in range(8) if i not in (1, 2)]
    launches = [launch(i, starts[i] + 1) for i in work]
    executions = [
        run(TRAIN, i, starts[i], starts[i] + lengths[i], ops=35 if i == 7 else 100) for i in work
    ]
    steps, *_ = cut_steps(executions, markers, launches, [starts[0] + 5])
    used = [(s.end_ns - s.start_ns) / S for s in steps if not s.reason]
    assert (sorted(used)[1] + sorted(used)[2]) / 2 == 2.00
    assert used == [2.00, 2.00, 2.01, 1.99]
    assert [(s.step, s.reason) for s in steps if s.reason] == [
        (0, "compiled in it"),
        (1, "no device work in it"),
        (2, "no device work in it"),
        (7, "cut by the end of the capture: 35 of 100 ops"),
    ]


def test_lengths_alone_tell_compile_ramp_up_and_cut_steps():
    lengths = [round(s * 100) for s in (45.0, 0.2, 0.4, 2.00, 2.00, 2.01, 1.99, 0.7)]
    steps, *_ = cut_steps(in_row(*lengths), [], [])
    assert [s.end_ns - s.start_ns for s in steps if not s.reason] == [200, 200, 201, 199]
    assert [s.reason.split(":")[0] for s in steps if s.reason] == [
        "warm-up",
        "ramp-up",
        "ramp-up",
        "cut by the end of the capture",
    ]


def test_too_few_steps_drop_none_for_its_length():
    steps, *_ = cut_steps(in_row(10, 100, 100), [], [])
    assert [s.reason for s in steps] == ["", "", ""]


def test_a_copy_just_before_each_step_but_the_first_prepares_it():
    """Copies of 30 end 10 before the next step and begin 500 behind the one before, which has none.

    The last one is that of a step that the capture does not hold.
    """
    mains = [run(TRAIN, n, 1_540 * n, 1_540 * n + 1_000) for n in range(3)]
    copies = [run(EVAL, 50 + n, 1_540 * n + 1_500, 1_540 * n + 1_530, ops=1) for n in range(3)]
    steps, *_ = cut_steps([*mains, *copies], [], [])
    assert [step.runs for step in steps] == [
        ((TRAIN, 0),),
        ((EVAL, 50), (TRAIN, 1)),
        ((EVAL, 51), (TRAIN, 2)),
    ]
    assert steps[0].reason == "began before the capture: 100 of 101 ops"  # 3 % of the time


def test_a_step_is_whole_without_a_program_of_next_to_no_time():
    mains = [run(TRAIN, n, 15_400 * n, 15_400 * n + 15_000) for n in range(3)]
    copies = [run(EVAL, 50 + n, 15_400 * n + 15_390, 15_400 * n + 15_398, ops=1) for n in range(2)]
    steps, *_ = cut_steps([*mains, *copies], [], [])  # 16 of 45,016: 0.04 %
    assert [len(step.runs) for step in steps] == [1, 2, 2]
    assert [step.reason for step in steps] == ["", "", ""]


def test_many_programs_of_next_to_no_time_are_not_little_together():
    """Five copies of 0.027 % each, which the first step lacks: 0.13 % of 30,040."""
    mains = [run(TRAIN, n, 10_400 * n, 10_400 * n + 10_000) for n in range(3)]
    copies = [
        run(50 + kind, 100 + 10 * n + kind, at, at + 4, ops=1)
        for n in range(2)
        for kind in range(5)
        for at in (10_400 * n + 10_350 + 8 * kind,)
    ]
    steps, *_ = cut_steps([*mains, *copies], [], [])
    assert [len(step.runs) for step in steps] == [1, 6, 6]
    assert [step.reason for step in steps] == [
        "began before the capture: 100 of 102 ops",  # three of them are 0.08 % together
        "",
        "",
    ]
