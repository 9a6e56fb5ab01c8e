"""Both readers on recorded profiles, against google.protobuf."""

import gzip

import pytest
from space_oracle import event_rows, parse

from moeprof.ingest.xspace.open_space import open_space

FILES = ("h100x2_moe_ragged.xplane.pb", "maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz")
ASKED = ("hlo_op", "program_id", "kernel_details")


@pytest.mark.parametrize("reader", ["native", "python"])
@pytest.mark.parametrize("name", FILES)
def test_every_event_of_a_recorded_profile_is_what_protobuf_reads(
    recorded, monkeypatch, reader, name
):
    monkeypatch.setenv("MOEPROF_READER", reader)
    file = recorded / "traces" / name
    raw = file.read_bytes()
    planes = parse(gzip.decompress(raw) if name.endswith(".gz") else raw).planes
    space = open_space(file)
    assert space.head.damage == []
    for plane, known in zip(space.head.planes, planes, strict=True):
        found = space.events(plane, numbers=ASKED, texts=ASKED)
        rows = event_rows(known, ASKED)
        assert [plane.event_names[at] for at in found.name] == [row["name"] for row in rows]
        for column in ("line", "start_ns", "end_ns"):
            assert getattr(found, column).tolist() == [row[column] for row in rows]
        for stat in ASKED:
            texts = [None if code < 0 else found.strings[code] for code in found.texts[stat]]
            assert texts == [row[f"text {stat}"] for row in rows]
            numbers = found.numbers[stat].tolist()
            assert numbers == [row[f"number {stat}"] for row in rows]
