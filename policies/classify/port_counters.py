"""Counters of a port's driver that grow only when its link is bad, from the output of ``ethtool -S``.

Source: "Understanding mlx5 ethtool counters" (NVIDIA), and the names in the drivers of the kernel (mlx5, bnxt, i40e,
ice, tg3). Left out: what grows under load alone (discards, misses, pauses, buffers), what the link corrected, and
what sysfs has under the same name.
"""

from __future__ import annotations

import re

_LINE = re.compile(r"^\s*([A-Za-z][\w.\[\] -]{0,80}?):\s*(\d{1,20})\b", re.MULTILINE)
FAULTS = frozenset(
    {
        "rx_crc_errors_phy",
        "rx_symbol_err_phy",
        "tx_errors_phy",
        "port.rx_crc_errors",
        "port.illegal_bytes",
        "rx_crc_errors.nic",
        "illegal_bytes.nic",
        "rx_fcs_errors",
        "rx_fcs_err_frames",
        "rx_align_errors",
        "fec_uncorrectable_blocks",
    }
)


def faults(output: str) -> dict[str, int]:
    """Return the counters of faults that the driver has, by name."""
    return {name: int(value) for name, value in _LINE.findall(output) if name in FAULTS}
