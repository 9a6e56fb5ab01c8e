"""The native reader of JSON traces and the plain one take in the same, whatever the bytes."""

import gzip
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from json_fuzz_seeds import CORPUS, seeds

from moeprof.errors import NativeError, SpecError
from moeprof.ingest.chrome_json import native_elements
from moeprof.ingest.chrome_json.elements import CHUNK, Ahead, JsonTrace, Unpacked
from moeprof.ingest.chrome_json.gathered import NONE, Gathered, description
from moeprof.ingest.chrome_json.native_elements import NativeTrace, opened_trace
from moeprof.ingest.planes.record import Labels
from moeprof.ingest.xspace import native_library


class Dripping(io.BytesIO):
    """Gives fewer bytes than it is asked for."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size=-1, /):
        return super().read(min(size, self._most))


def plain(stream, _gathered):
    return JsonTrace(stream)


def view(data: bytes, most: int, make) -> dict[str, object]:
    """All that is taken in, rows and labels by their codes."""
    gathered = Gathered(Labels())
    trace = make(Dripping(data, most), gathered)
    gathered.add(trace.events())
    names = [("names", gathered.names), ("threads", gathered.threads), ("tags", gathered.tags)]
    return {
        "labels": gathered.labels.texts,
        "rows": [*map(list, gathered._columns)],
        "calls": [*map(list, gathered._calls)],
        **{name: list(known.items()) for name, known in names},
        "renamed": list(gathered.renamed.items()),
        "dropped": list(gathered.dropped.items()),
        "complete": gathered.complete,
        "others": repr(trace.others),
        "broken": (trace.broken, trace.problem, trace.is_list_alone),
        # reading ends at a problem, somewhere in a piece
        "replaced": 0 if trace.problem else trace.replaced,
    }


def assert_twins_agree(data: bytes, *pieces: int) -> dict[str, object]:
    expected = view(data, CHUNK, plain)
    for most in pieces:
        assert view(data, most, plain) == expected
    for most in (CHUNK, *pieces):
        assert view(data, most, NativeTrace) == expected
    return expected


NUMBERS = ["0", "-0", "7", "-7", "1.5", "12.3456", "-0.0005", "1e3", "2E-1", "0.5e+2", "01", "1."]
NUMBERS += ["5200460032161.638", "9" * 18, "4611686018427387903", "-4611686018427387904"]
NUMBERS += ["4611686018427387904", "18446744073709551615", "9" * 25, "9" * 301, "9" * 5000]
NUMBERS += [f"1.{'9' * 24}", f"1.{'9' * 40}", "1700000000000000.1239", "NaN", "-Infinity", "-"]
TEXTS = ['""', '"12"', '"-12"', '"-"', '"007"', '"1_000"', '" 5"', '"+5"', '"1.0"', '"1e3"']
TEXTS += [
    '"\N{ARABIC-INDIC DIGIT THREE}"',
    '"\N{SUPERSCRIPT TWO}"',
    '"stream 7"',
    '"00000000000000000000007"',
]
TEXTS += ['"XlaModule:"', '"Xla\\u004dodule:"', '"$f.py:3 g"', '"\\u0024f"', '"\\ud83d\\ude00"']
TEXTS += [
    '"\\ud800"',
    '"a\\"b\\\\c\\n"',
    '"\\x"',
    '"\\u12g4"',
    '"tab\there"',
    '"\x00"',
    '"\N{SNOWMAN}"',
]
TEXTS += ['"X"', '"\\u0058"', '"B"', '"cpu_op"', '"kernel"', '"gpu_launch"', '"k\\u0065rnel"']
OTHERS = ["true", "false", "null", "[ ]", "{ }", '[[1,2.5], ["a" ,""]]', '{"b" : {"c":[]}}', "tru"]
OTHERS += ["[1,]", "[" * 70 + "]" * 70, '{"a":1,}', "nul"]
VALUE = st.sampled_from([*NUMBERS, *TEXTS, *OTHERS])
SPACE = st.sampled_from(["", " ", "\n  ", "\t\r"])
ARGUMENT = st.sampled_from(sorted({f'"{text}"' for role, _, text in description() if role < 5}))
ODD_KEY = st.sampled_from(
    ['"Ev Idx"', '"Input Strides"', '"\\u006eame"', '"labels"', '""', '"p\\h"']
)


def members(pairs):
    """An object as text, keys in any order and more than once."""
    member = st.tuples(SPACE, pairs, SPACE).map(
        lambda parts: "".join((parts[0], parts[1], parts[2]))
    )
    return st.lists(member, max_size=6).map(lambda all_of: "{" + ",".join(all_of) + "}")


def pair(keys, values):
    return st.tuples(keys, SPACE, values).map(lambda parts: f"{parts[0]}:{parts[1]}{parts[2]}")


ARGUMENTS = members(pair(ARGUMENT | ARGUMENT | ODD_KEY, VALUE))
PHASE = st.sampled_from(["X", "X", "X", "X", "M", "B", "E", "i"]).map(json.dumps)
NAME = st.sampled_from(["process_name", "thread_name", "process_labels", "aten::mm", "$f.py:3 g"])
CATEGORY = st.sampled_from(["cpu_op", "kernel", "gpu_launch", "user_annotation"])
STAMP = st.decimals(0, 10**13, places=3).map(str) | st.sampled_from(NUMBERS)
USUAL = st.tuples(
    pair(st.just('"ph"'), PHASE),
    pair(st.just('"name"'), NAME.map(json.dumps) | VALUE),
    pair(st.just('"cat"'), CATEGORY.map(json.dumps)),
    pair(st.just('"ts"'), STAMP),
    pair(st.just('"dur"'), STAMP),
    pair(st.sampled_from(['"pid"', '"tid"']), st.sampled_from(["0", "1", '"1"', '"Spans"'])),
    pair(st.just('"args"'), ARGUMENTS),
).map(lambda pairs: "{" + ", ".join(pairs) + "}")
KEY = st.sampled_from(
    [f'"{key}"' for key in ("ph", "name", "cat", "pid", "tid", "ts", "dur", "bind_id", "args")]
)
ODD = members(pair(KEY | ODD_KEY, VALUE | ARGUMENTS | PHASE))
LAST_WINS = st.tuples(USUAL, pair(KEY, VALUE)).map(lambda parts: f"{parts[0][:-1]},{parts[1]}}}")
ELEMENT = USUAL | USUAL | USUAL | LAST_WINS | ODD | VALUE
SEPARATOR = st.sampled_from([",", ",", ",\n", " , ", ",,", " "])


@st.composite
def traces(draw) -> bytes:
    events = draw(st.lists(st.tuples(ELEMENT, SEPARATOR), max_size=6))
    listed = "[" + "".join(part for pair in events for part in pair) + "]"
    around = draw(
        st.sampled_from(["%s", '{"traceEvents":%s}', '{"a": 1, "traceEvents": %s, "b": []}'])
    )
    return (around % listed).encode()


@st.composite
def damaged(draw) -> bytes:
    data = bytearray(draw(traces()))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.sampled_from([b"", b"\xff", b"\xe2\x82", b'"', b"\\", b"}", b"{", b"]"]))
        data[at : at + draw(st.integers(0, 3))] = piece
    return bytes(data)


@settings(max_examples=150, deadline=None)
@given(traces(), st.integers(1, 40))
def test_any_trace_is_the_same_to_both(data, most):
    assert_twins_agree(data, most)


@settings(max_examples=150, deadline=None)
@given(damaged(), st.integers(1, 40))
@example(b'[{"ph":"X","name":"\xff\xef\xbf\xbd","ts":1,"dur":1}]', 7)
def test_a_damaged_trace_is_the_same_to_both(data, most):
    assert_twins_agree(data, most)


@pytest.mark.parametrize("file", sorted(CORPUS.iterdir()), ids=lambda file: file.name)
def test_what_fuzzing_found_is_the_same_to_both(file):
    assert_twins_agree(file.read_bytes(), 5)


def test_the_seeds_of_fuzzing_are_what_the_builders_write():
    for name, content in seeds().items():
        assert (CORPUS / f"seed-{name}").read_bytes() == content


KERNEL = b'{"ph":"X","pid":1,"tid":2,"name":"k","ts":1,"dur":1,"args":{"hlo_op":"%s"}}'


def test_events_longer_than_a_chunk_and_broken_ones_before_them_are_the_same_to_both():
    long = KERNEL % (b"x" * (CHUNK + 10))
    unclosed = KERNEL.replace(b'"k"', b'"k') % b""
    data = b"[" + b",".join([KERNEL % b"a", long, unclosed, KERNEL % b"b", long, KERNEL % b"c"])
    found = assert_twins_agree(data, CHUNK // 3)
    assert found["complete"] == 5
    assert found["broken"] == (1, "the text ends in the middle", True)


def test_a_number_of_thousands_of_digits_costs_its_event_alone_where_a_piece_ends_in_it():
    data = b"[%s,%s,%s]" % (KERNEL % b"a", KERNEL.replace(b"1", b"9" * 6000) % b"b", KERNEL % b"c")
    found = assert_twins_agree(data, 300, 7000)
    assert (found["complete"], found["broken"]) == (2, (1, "", True))


def test_a_file_of_many_broken_events_is_the_same_to_both():
    broken = KERNEL.replace(b":1", b"1", 1)
    many = 2 * native_elements._MOST_TURNS
    data = b"[" + b",".join(many * [KERNEL % b"a", broken]) + b",%s]" % (KERNEL % b"b")
    found = assert_twins_agree(data)
    assert (found["complete"], found["broken"][0]) == (many + 1, many)


def test_more_rows_than_are_made_at_once_keep_their_order_among_events_left_to_the_twin():
    many = 2 * native_elements._ROWS
    named = [KERNEL % str(n % 1000).encode() for n in range(many)]
    named[many // 3] = b'{"ph":"B","ts":1}'
    named[many // 2] = b'{"ph":"E","ts":2}'
    found = assert_twins_agree(b"[" + b",".join(named) + b"]")
    assert len(found["labels"]) == len({"", "k"}) + 1000  # of ops; "1" and "2" are among them


@pytest.mark.parametrize(
    ("stamp", "start_ns"),
    [("12.3456", 12_345), ("1700000000000000.123", 1_700_000_000_000_000_123)],
)
def test_columns_and_labels_are_what_an_event_of_pytorch_tells_by_hand(stamp, start_ns):
    event = (
        '[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 5, "tid": 7, "ts": %s, "dur": 2, '
        '"args": {"External id": "9", "Sequence number": 4, "Input Dims": [[8, 2], []]}}]'
    )
    gathered = Gathered(Labels())
    trace = NativeTrace(io.BytesIO((event % stamp).encode()), gathered)
    assert list(trace.events()) == []
    texts = gathered.labels.texts
    columns = ("process", "thread", "category", "event", "start_ns", "end_ns", "external", "rank")
    (row,) = zip(*(gathered.column(name).tolist() for name in columns), strict=True)
    assert [texts[code] for code in row[:4]] == ["5", "7", "cpu_op", "aten::mm"]
    assert row[4:] == (start_ns, start_ns + 2_000, 9, NONE)
    calls = {name: column.tolist() for name, column in gathered.calls().items()}
    assert (calls["place"], calls["sequence"], calls["forward_thread"]) == ([0], [4], [NONE])
    inputs = [texts[calls[name][0]] for name in ("dims", "types", "collective")]
    assert inputs == ["[[8,2],[]]", "", ""]


@pytest.mark.parametrize(("wish", "expected"), [("native", NativeTrace), ("python", JsonTrace)])
def test_the_reader_asked_for_is_used(monkeypatch, wish, expected):
    monkeypatch.setenv("MOEPROF_READER", wish)
    assert type(opened_trace(io.BytesIO(b"[]"), Gathered(Labels()))) is expected


def test_an_unknown_reader_is_refused(monkeypatch):
    monkeypatch.setenv("MOEPROF_READER", "rust")
    with pytest.raises(SpecError, match="expected native or python, found 'rust'"):
        opened_trace(io.BytesIO(b"[]"), Gathered(Labels()))


def test_without_the_library_the_plain_reader_reads_and_the_native_one_is_explained(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("MOEPROF_XSPACE_LIBRARY", str(tmp_path / "none.so"))
    monkeypatch.delenv("MOEPROF_READER", raising=False)
    native_library.load.cache_clear()
    try:
        assert type(opened_trace(io.BytesIO(b"[]"), Gathered(Labels()))) is JsonTrace
        monkeypatch.setenv("MOEPROF_READER", "native")
        with pytest.raises(NativeError, match=r"none\.so, found nothing there"):
            opened_trace(io.BytesIO(b"[]"), Gathered(Labels()))
    finally:
        native_library.load.cache_clear()


def test_what_is_read_ahead_is_the_stream_and_its_faults_too():
    packed = gzip.compress(bytes(range(256)) * 20_000)
    with ThreadPoolExecutor(1) as threads:
        stream = Ahead(Unpacked(io.BytesIO(packed)), threads)
        assert b"".join(iter(lambda: stream.read(CHUNK), b"")) == bytes(range(256)) * 20_000
        cut = Ahead(Unpacked(io.BytesIO(packed[:-9])), threads)
        with pytest.raises(EOFError, match="ends in the middle"):
            b"".join(iter(lambda: cut.read(CHUNK), b""))
