"""A ``/sys`` and a ``/proc`` of a test's own."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, text: object) -> None:
    """Write one file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


class FakeSys:
    """Network ports as the kernel shows them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def ethernet(self, name: str = "eth0", *, state: str = "up", changes: int = 1, **statistics: int) -> None:
        """Set one Ethernet port."""
        port = self.root / "class/net" / name
        write(port / "device/vendor", "0x15b3")
        write(port / "operstate", state)
        write(port / "carrier_changes", changes)
        write(port / "speed", statistics.pop("speed", 100_000))
        for counter, value in {"rx_packets": 0, "tx_packets": 0, "rx_dropped": 0, **statistics}.items():
            write(port / "statistics" / counter, value)

    def infiniband(
        self,
        name: str = "mlx5_0",
        *,
        state: str = "4: ACTIVE",
        rate: str = "400 Gb/sec (4X NDR)",
        **counters: int,
    ) -> None:
        """Set port 1 of one InfiniBand adapter."""
        port = self.root / "class/infiniband" / name / "ports/1"
        write(port / "state", state)
        write(port / "phys_state", "5: LinkUp")
        write(port / "rate", rate)
        known = {"link_downed": 0, "symbol_error": 0, "port_rcv_packets": 0, "port_xmit_packets": 0}
        for counter, value in {**known, **counters}.items():
            write(port / "counters" / counter, value)
