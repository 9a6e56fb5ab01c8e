"""Question: what holds the devices back, in one sentence per question?"""

from __future__ import annotations

from moeprof.answers.document import Document, headline
from moeprof.answers.story import basis
from moeprof.answers.values import NONE, is_number, written
from moeprof.specs.hardware import load_hardware


def roofline(document: Document) -> str:
    """MFU and HFU where the device is known, else the FLOPs that ran."""
    found = headline(document, "roofline")
    if found.get("hardware_flops") is None:
        return "Not known: the notes say why."
    ran = f"{written(found['hardware_flops'], 'FLOP')} {basis(document)}"
    if found["hfu"] is None:
        return f"{ran} ran; their share of a peak is not known, as the notes say."
    device = load_hardware(str(found["hardware"])).name
    least, most = found["mfu"], found["mfu_at_most"]
    of_model = "MFU is not known"
    if least is not None:
        of_model = f"MFU is {written(least, 'share')}"
    elif most is not None:
        of_model = f"MFU is at most {written(most, 'share')}"
    return f"{of_model} on {device}, HFU {written(found['hfu'], 'share')}, from {ran}."


def sync_gaps(document: Document) -> str:
    """Idle time, its longest gap and main cause, and what of it is the host's."""
    found = headline(document, "sync_gaps")
    if found.get("idle_time") is None:
        return NONE
    told = f"Devices stand still for {written(found['idle_time'], 'ns')} {basis(document)}"
    if found["longest_gap"] is not None:
        told += f", at the longest for {written(found['longest_gap'], 'ns')}"
    if found["main_cause"] is not None:
        told += f"; main cause: {written(found['main_cause'], '')}"
    late = found["host_late_time"]
    if is_number(late):
        told += f"; the host's launches come late for {written(late, 'ns')} of it"
    return f"{told}."


def launch(document: Document) -> str:
    """Kernels, how many are short, and how often a launch met an empty queue."""
    found = headline(document, "launch")
    if found.get("kernels_per_step") is None:
        return NONE
    told = (
        f"{written(found['kernels_per_step'], 'count')} kernels {basis(document)}, "
        f"{written(found['short_kernel_share'], 'share')} of them short"
    )
    if found["empty_queue_share"] is not None:
        told += (
            f"; for {written(found['empty_queue_share'], 'share')} of the step nothing "
            "is queued behind what runs"
        )
    return f"{told}."


def pipeline(document: Document) -> str:
    """The bubble that stages have, and the one that the schedule demands."""
    found = headline(document, "pipeline")
    if not found:
        return NONE
    return (
        f"Stages wait {written(found['bubble_share'], 'share')} of the time; the schedule "
        f"({written(found['schedule'], '')}, {found['stages']} stages) demands "
        f"{written(found['schedule_share'], 'share')}."
    )
