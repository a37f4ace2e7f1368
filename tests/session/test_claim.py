"""One process is a rank; what it starts with its environment is not."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection

import pytest

from holdfast.errors import SettingsError
from holdfast.session import Session
from tests.session.conftest import MakeAgent

pytestmark = pytest.mark.torch

_SECOND = """
import sys
from holdfast.errors import SettingsError
from holdfast.session import Session
session = Session()
session.step(999, loss=float("nan"))
print("active" if session.active else "a bystander")
for act in () if session.active else (lambda: session.restore({}), lambda: session.checkpoint({})):
    try:
        act()
    except SettingsError as error:
        print(error)
"""


def _second(environ: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", _SECOND],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=150,
    ).stdout


def test_a_child_with_the_ranks_environment_is_not_the_rank(make_agent: MakeAgent) -> None:
    """An evaluation of the script's own, with a Session in it: its NaN stopped the job.

    It goes on as without an agent, as a data loader's process does that imports the script. What it may not do is to
    begin from zero, or to save, as if it were the rank.
    """
    agent = make_agent()
    # Once: to make it opens the page in this process, where a rank's agent would be another one.
    environ = agent.environ(0)
    session = Session(environ)
    line, *refused = _second(environ).splitlines()
    assert line == "a bystander"
    assert len(refused) == 2
    for each in refused:
        assert f"rank 0 has a Session already, in process {os.getpid()}" in each
    session.step(1, loss=1.0)
    agent.wait_for(lambda: agent.of("step"))
    assert [each["step"] for each in agent.of("step")] == [1]


def test_a_process_has_as_many_sessions_as_it_makes(make_agent: MakeAgent) -> None:
    """And one that started the rank without a Session of its own leaves it to its child."""
    agent = make_agent()
    assert _second(agent.environ(0)).splitlines()[0] == "active"
    environ = agent.environ(0)
    assert [Session(environ).restore({}) for _ in range(2)] == [0, 0]


def _inherit(session: Session, parent: Connection) -> None:
    """Act as a process that a script forks: an evaluation, a data loader's worker."""
    session.step(999, loss=float("nan"))
    with session.phase("eval"):
        pass
    session.wait()
    results = [str(session.flush(0.0)), str(session.skips(1)), str(session.share(1, 4).samples)]
    for act in (lambda: session.restore({}), lambda: session.checkpoint({})):
        try:
            act()
        except SettingsError as error:
            results.append(str(error))
    parent.send(results)


def test_a_fork_that_inherits_the_session_is_not_the_rank(make_agent: MakeAgent) -> None:
    """A child's step 999 and its NaN were the rank's own; what a loader's worker asks has the rank's answers."""
    agent = make_agent()
    session = Session(agent.environ(0))
    session.restore({})
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_inherit, args=(session, theirs))
    child.start()
    assert ours.poll(60.0)
    *answers, restore, checkpoint = ours.recv()
    child.join()
    assert answers == ["True", "False", str(session.share(1, 4).samples)]
    for refused in (restore, checkpoint):
        assert f"rank 0 has a Session already, in process {os.getpid()}" in refused
    session.step(1, loss=1.0)
    agent.wait_for(lambda: agent.of("step"))
    assert [each["step"] for each in agent.of("step")] == [1]
    assert agent.of("activity") == []
