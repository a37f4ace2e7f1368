"""A process that is kept waits for the last copy of its epoch's saver."""

from __future__ import annotations

import threading
from typing import Any

from holdfast.session.keep import live


class _Saver:
    def __init__(self) -> None:
        self.copied = threading.Event()

    def close(self, timeout_s: float) -> bool:
        return self.copied.wait(timeout_s)


def test_a_copy_under_way_holds_the_process_back_though_its_session_is_gone() -> None:
    """A queued copy holds the saver: when nothing does, nothing writes."""
    saver: Any = _Saver()
    live.add(saver)
    assert not live.close_all(0.01)
    live.add(saver)
    saver.copied.set()
    assert live.close_all(0.01)
    live.add(_Saver())  # type: ignore[arg-type]
    assert live.close_all(0.01)
