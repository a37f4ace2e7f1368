"""Meaning of NVIDIA DCGM's tests: a fault of the GPU, or of the machine's configuration."""

from __future__ import annotations

OF_HARDWARE = frozenset({2, 6})
"""Severities DCGM_ERROR_ISOLATE and DCGM_ERROR_RESET; the others: none, monitor, unknown, triage, configuration."""
_OF_SETTINGS = frozenset(
    {
        "software",
        "blacklist",
        "denylist",
        "nvml library",
        "cuda main library",
        "cuda toolkit libraries",
        "permissions and os blocks",
        "persistence mode",
        "environment variables",
        "graphics processes",
    }
)
_NOT_RUN = ("busy or unavailable", "out of memory", "Unable to allocate", "may affect the results")
"""Something else was on the GPU: DCGM 4.5 fails its test of bandwidth for what its own test before it left running."""


def of_hardware(test: str, message: str = "", severity: int | None = None) -> bool:
    """Return whether a failure of the test proves a broken GPU.

    Its severity decides. Without one (before DCGM 3.3), a failed test of settings proves nothing, nor does one that
    could not run beside another process.

    Args:
        test: its name.
        message: of the tool.
        severity: of the gravest of its warnings.
    """
    if severity is not None:
        return severity in OF_HARDWARE
    return test.lower() not in _OF_SETTINGS and not any(words in message for words in _NOT_RUN)
