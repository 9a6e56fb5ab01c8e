"""Global ids of the devices of a JSON trace, as the runtime states them where it runs a program."""

from __future__ import annotations

import numpy as np

from moeprof.ingest.chrome_json.device_work import DeviceWork
from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.xspace.space import Flags


def device_ids(gathered: Gathered, keep: Flags, found: DeviceWork) -> dict[int, int]:
    """Global id by device, in order of both, if the runtime used as many as have work."""
    stated = gathered.column("global_id")
    ids = np.unique(stated[keep & (stated != NONE)]).tolist()
    devices = np.unique(found.work["device"].to_numpy()).tolist()
    return dict(zip(devices, ids, strict=True)) if len(devices) == len(ids) else {}
