"""A real cable that loses contact: a pair of virtual ports, of which one lies in a network namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.waiting import wait_for

_LOOK = """
import subprocess, sys, json
from pathlib import Path
from holdfast.agent.inspection.network import Network
from holdfast.policies.config.policy import Policy
limits = Policy.load().detect.network.model_copy(update={"interfaces": ("eth0",)})
clock = iter(range(0, 10_000, 30)).__next__
network = Network(Path("/sys"), limits, clock)
for line in sys.stdin:
    print(json.dumps([(sign.kind.value, sign.ok, sign.device) for sign in network.look()]), flush=True)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)


def cable(space: str, state: str) -> None:
    """Put our end up or down, and wait until the kernel has noted it at the other."""
    ip("link", "set", space, state)
    show = ["ip", "-n", space, "link", "show", "eth0"]

    def noted() -> bool:
        output = subprocess.run(show, check=True, capture_output=True, text=True, timeout=60).stdout
        return ("LOWER_UP" in output) == (state == "up")

    wait_for(f"eth0 is {state}", noted)


@pytest.fixture
def space() -> Iterator[str]:
    """A namespace with a port eth0, whose other end is ours."""
    name = f"hfp{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces take root and iproute2")
    try:
        ip("netns", "add", name)
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
    except subprocess.CalledProcessError as error:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        pytest.skip(f"the kernel forbids it: {error.stderr.decode(errors='replace').strip()}")
    ip("-n", name, "link", "set", "eth0", "up")
    cable(name, "up")
    yield name
    subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
    ip("netns", "del", name)


@pytest.mark.e2e
def test_a_cable_that_loses_contact_is_seen_by_the_kernels_own_counters(space: str) -> None:
    """Down, up again, and a flap between two looks; the other end is pulled, as a switch or a cable does."""
    # Of this namespace, /sys included.
    command = ["ip", "netns", "exec", space, sys.executable, "-c", _LOOK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None

        def look() -> str:
            assert agent.stdin is not None
            assert agent.stdout is not None
            agent.stdin.write("\n")
            agent.stdin.flush()
            return agent.stdout.readline().strip()

        assert look() == '[["nic_down", true, "eth0"]]'
        cable(space, "down")
        assert look() == '[["nic_down", false, "eth0"]]'
        cable(space, "up")
        assert look() == '[["nic_down", true, "eth0"]]'
        cable(space, "down")
        cable(space, "up")
        assert look() == '[["nic_flapping", false, "eth0"]]'
        assert look() == '[["nic_down", true, "eth0"]]'
        agent.stdin.close()
        agent.wait(60)
