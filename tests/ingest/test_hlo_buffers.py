from builders.hlo import Allocation, LogicalBuffer, computation, hlo_proto, op
from builders.protobuf import message, packed

from moeprof.ingest.hlo.buffer_assignment import MemoryTotals
from moeprof.ingest.hlo.programs import parse_program

THREAD_LOCAL, PARAMETER, LIVE_OUT, COLOR, CONSTANT, ALIASED = 3, 5, 7, 8, 12, 13
ALLOC, FREE, SHARE = 0, 1, 2
MAIN = computation("main", op("a", "parameter", "f32[8]"), op("b", "negate", "f32[4]", "a"))


def buffers_of(*buffers: LogicalBuffer, **more):
    return parse_program(hlo_proto(MAIN, buffers=buffers, **more)).buffers


def totals(*allocations: Allocation) -> MemoryTotals:
    return parse_program(hlo_proto(MAIN, allocations=dict(enumerate(allocations)))).memory


def test_buffers_have_place_and_life():
    a, b = buffers_of(
        LogicalBuffer(1, "a", 32),
        LogicalBuffer(2, "b", 16, offset_bytes=64),
        heap=[(ALLOC, 1), (ALLOC, 2), (FREE, 1)],
    )
    assert (a.op, a.size_bytes, a.offset_bytes, a.allocation) == ("a", 32, 0, 0)
    assert (a.trace, a.live_from, a.live_to) == (0, 0, 2)
    assert (b.offset_bytes, b.live_from, b.live_to) == (64, 1, 3)


def test_a_buffer_that_shares_memory_lives_from_there():
    _, b = buffers_of(
        LogicalBuffer(1, "a", 32),
        LogicalBuffer(2, "b", 16),
        heap=[(ALLOC, 1), (FREE, 1), (SHARE, 2), (FREE, 2)],
    )
    assert (b.live_from, b.live_to) == (2, 3)


def test_each_memory_space_has_a_trace_of_its_own():
    a, b = buffers_of(
        LogicalBuffer(1, "a", 32),
        LogicalBuffer(2, "b", 16, allocation=1, color=1),
        heaps=[[(ALLOC, 1), (FREE, 1)], [(ALLOC, 2), (FREE, 2)]],
    )
    assert (a.color, a.trace, a.live_from) == (0, 0, 0)
    assert (b.color, b.trace, b.live_from, b.allocation) == (1, 1, 0, 1)


def test_a_part_of_a_tuple_names_its_place():
    (part,) = buffers_of(LogicalBuffer(1, "b", 16, shape_index=(0, 1)))
    assert part.shape_index == "0.1"
    assert (part.trace, part.live_from, part.live_to) == (-1, -1, -1)


def test_the_first_flag_of_an_allocation_names_its_kind():
    flags = [(THREAD_LOCAL,), (PARAMETER, LIVE_OUT, ALIASED), (CONSTANT,), (LIVE_OUT,), ()]
    found = buffers_of(
        *(LogicalBuffer(n, "a", 4, allocation=n) for n in range(5)),
        allocations={n: Allocation(4, flag) for n, flag in enumerate(flags)},
    )
    kinds = [buffer.kind for buffer in found]
    assert kinds == ["thread-local", "parameter", "constant", "output", "temp"]


def test_buffers_at_the_peak_are_marked():
    proto = hlo_proto(MAIN, buffers=[LogicalBuffer(1, "a", 4), LogicalBuffer(2, "b", 4)])
    parts = parse_program(proto).parts
    module, assignment = (proto[slice(*parts[number])] for number in (1, 3))
    peak = message((5, message((1, 0), (2, packed([2])))))
    found = parse_program(message((1, module), (3, assignment + peak))).buffers
    assert [buffer.is_at_peak for buffer in found] == [False, True]


def test_older_writers_name_the_instruction_of_a_buffer():
    place = message((2, "b"), (3, packed([0])))
    logical = message((1, 7), (2, 16), (3, place))
    (found,) = parse_program(message((3, message((1, logical))))).buffers
    assert (found.op, found.shape_index, found.allocation) == ("b", "0", -1)


def test_totals_count_a_donated_argument_once():
    memory = totals(
        Allocation(100, (PARAMETER,)),
        Allocation(40, (PARAMETER, LIVE_OUT, ALIASED)),
        Allocation(8, (LIVE_OUT,)),
        Allocation(500),
        Allocation(64, (THREAD_LOCAL,)),
        Allocation(20, (CONSTANT,)),
    )
    assert memory == MemoryTotals(
        argument_bytes=140, output_bytes=48, alias_bytes=40, temp_bytes=500, constant_bytes=20,
        host_argument_bytes=0, host_output_bytes=0, host_alias_bytes=0, host_temp_bytes=0,
    )  # fmt: skip


def test_what_lies_in_host_memory_is_no_total_of_the_device():
    donated = (PARAMETER, LIVE_OUT, ALIASED)
    memory = totals(
        Allocation(100, donated),
        Allocation(30, donated, color=5),
        Allocation(7, (PARAMETER,), color=5),
        Allocation(500),
        Allocation(60, color=5),
        Allocation(11, color=1),  # memory of the device that collectives share
    )
    assert memory == MemoryTotals(
        argument_bytes=100, output_bytes=100, alias_bytes=100, temp_bytes=511, constant_bytes=0,
        host_argument_bytes=37, host_output_bytes=30, host_alias_bytes=30, host_temp_bytes=60,
    )  # fmt: skip


def test_a_program_that_holds_memory_on_the_host_alone_has_totals():
    assert totals(Allocation(60, color=5)).temp_bytes == 0


def test_a_buffer_lies_in_the_memory_of_its_allocation():
    found = buffers_of(
        LogicalBuffer(1, "a", 4),
        LogicalBuffer(2, "b", 4, allocation=1, color=5),
        allocations={0: Allocation(4, color=5), 1: Allocation(4)},
    )
    assert [buffer.color for buffer in found] == [5, 5]


def test_a_program_without_assignment_has_no_totals():
    program = parse_program(message((1, b"")))
    assert program.memory == MemoryTotals(*[-1] * 9)
    assert program.buffers == ()


def test_allocations_that_no_memory_holds_are_noted():
    noted: list[str] = []
    proto = hlo_proto(MAIN, allocations={0: Allocation(1 << 62)})
    assert parse_program(proto, noted).memory == MemoryTotals()
    assert len(noted) == 1
    assert "no memory holds" in noted[0]
