"""The Session's work beside training takes nothing from it."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from holdfast.agent.wire import Sender
from holdfast.session.background import Background


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="scheduling policies are of Linux")
def test_the_thread_that_saves_never_takes_the_processor_from_who_computes() -> None:
    """Its policy alone is that of work in the background; the thread that trains keeps its own."""
    background, found = Background(), []
    background.submit(lambda: found.append(os.sched_getscheduler(threading.get_native_id())))
    assert background.wait(120)
    assert found == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_an_agent_that_was_away_or_restarted_receives_the_next_message(tmp_path: Path) -> None:
    """Nothing is sent to the socket of the one before, and nothing is raised while there is none."""
    sender = Sender(str(tmp_path / "s"))
    assert not sender.send({"t": "step", "step": 0})
    for step in (1, 2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.bind(str(tmp_path / "s"))
            assert sender.send({"t": "step", "step": step})
            assert json.loads(agent.recv(65536))["step"] == step
        (tmp_path / "s").unlink()
        assert not sender.send({"t": "step", "step": step})


def test_an_agent_that_does_not_listen_is_not_waited_for(tmp_path: Path) -> None:
    """Messages beyond what its socket holds are given up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "s"))
        sender = Sender(str(tmp_path / "s"))
        assert any(not sender.send({"t": "step", "step": step}) for step in range(10_000))
        while json.loads(agent.recv(65536))["step"] == 0:
            pass
        assert sender.send({"t": "step", "step": 1})


@pytest.mark.parametrize("text", ["plain", "ünï", "not-unicode-\udcff"])
def test_any_name_of_a_file_reaches_the_agent(tmp_path: Path, text: str) -> None:
    """Also one that is no Unicode."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "s"))
        assert Sender(str(tmp_path / "s")).send({"t": "saved", "path": text, "s": 0.1, "loss": None})
        assert json.loads(agent.recv(65536)) == {"t": "saved", "path": text, "s": 0.1, "loss": None}


@pytest.mark.parametrize("taken", [False, True])
def test_a_socket_that_the_script_closed_is_opened_again(tmp_path: Path, *, taken: bool) -> None:
    """``os.closerange`` spares no descriptor; what has the number by now is sent nothing, and is not closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "s"))
        agent.settimeout(5)
        sender = Sender(str(tmp_path / "s"))
        assert sender.send({"t": "step", "step": 1})
        number = sender._socket.fileno()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with ours, theirs:
            os.close(number)
            if taken:
                os.dup2(ours.fileno(), number)
            assert sender.send({"t": "step", "step": 2})
            assert [json.loads(agent.recv(65536))["step"] for _ in range(2)] == [1, 2]
            if taken:
                with pytest.raises(BlockingIOError):
                    theirs.recv(1)
                os.close(number)
