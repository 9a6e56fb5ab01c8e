"""Question: how much energy has a GPU used, and at which clock does it run?"""

from __future__ import annotations

import ctypes


class Meter:
    """NVML's energy counter and clock of GPU 0; both are None where NVML does not answer."""

    def __init__(self) -> None:
        """Asks NVML for GPU 0."""
        self._device = ctypes.c_void_p()
        try:
            self._nvml: ctypes.CDLL | None = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self._nvml = None
            return
        found = self._nvml.nvmlDeviceGetHandleByIndex_v2
        if self._nvml.nvmlInit_v2() or found(0, ctypes.byref(self._device)):
            self._nvml = None

    def joules(self) -> float | None:
        """Since the driver was loaded."""
        if self._nvml is None:
            return None
        spent = ctypes.c_ulonglong()
        failed = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(spent))
        return None if failed else spent.value / 1e3

    def megahertz(self) -> int | None:
        """Of the multiprocessors, now."""
        if self._nvml is None:
            return None
        clock, multiprocessors = ctypes.c_uint(), 1
        failed = self._nvml.nvmlDeviceGetClockInfo(
            self._device, multiprocessors, ctypes.byref(clock)
        )
        return None if failed else clock.value
