"""GPUs on a host without any: a compiled ``libnvidia-ml.so.1`` whose values a test sets, under the real pynvml."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stub.c")
ENV = "NVML_STUB"


@functools.cache
def build() -> Path:
    """Compile the library once per test process; returns its path. Needs gcc."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, SOURCE], check=True
    )
    return library


@functools.cache
def load() -> ctypes.CDLL:
    """Have this process use it: pynvml asks for the library by its soname, which is then loaded already."""
    return ctypes.CDLL(str(build()))


class StubGpus:
    """The values; a child process sees them too when ``NVML_STUB`` and ``LD_LIBRARY_PATH`` say where."""

    def __init__(self, path: Path, count: int = 2) -> None:
        self.path = path
        self.values: dict[str, int] = {"count": count}
        """Read by the library."""
        self._events: list[str] = []
        for index in range(count):
            self.gpu(
                index,
                uncorrected=2,
                corrected=10,
                remap_pending=0,
                remap_failed=0,
                temperature=60,
                shutdown=95,
                memory_temperature=70,
                memory_max=105,
                throttle=0x4,
                generation=5,
                max_generation=5,
                width=16,
                max_width=16,
                replays=0,
                busy=99,
                persistence=1,
                sm_clock=1980,
                default_sm_clock=1980,
                power_limit=700_000,
                default_power_limit=700_000,
            )

    def set(self, **values: int | None) -> None:
        """Set values of the library (``count``, ``init``); None takes one away."""
        for name, value in values.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
        self._write()

    def gpu(self, index: int, **values: int | None) -> None:
        """Set values of one GPU; ``__`` in a name stands for a dot."""
        self.set(**{f"{index}.{name.replace('__', '.')}": value for name, value in values.items()})

    def event(self, index: int, xid: int) -> None:
        """Have the driver report an Xid of a GPU."""
        # The library counts what it has handed out in this process.
        count = getattr(StubGpus, "_event_count", 0) + 1
        StubGpus._event_count = count  # type: ignore[attr-defined]
        self._events.append(f"event {count} {index} {xid}")
        self._write()

    def _write(self) -> None:
        lines = [f"{name} {value}" for name, value in self.values.items()] + self._events
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.rename(self.path)
