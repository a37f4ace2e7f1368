"""Listeners whose ``accept`` fails, as the kernel has it fail."""

from __future__ import annotations

import os
import socket

import pytest


def fail_twice(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Have the next two calls fail with an error number; each that failed adds it to the list."""
    failed: list[int] = []
    accept = socket.socket.accept

    def failing(listener: socket.socket) -> object:
        if len(failed) < 2:
            failed.append(number)
            raise OSError(number, os.strerror(number))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    return failed
