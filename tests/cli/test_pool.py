"""``holdfast pool``: the present pool, and estimates for other sizes."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake_gateway import FakeGateway


@pytest.mark.parametrize(("machines", "standbys"), [(128, 2), (256, 2), (512, 3), (1024, 4)])
def test_the_published_table_from_the_command_line(cli: Cli, machines: int, standbys: int) -> None:
    """ByteRobust table 5 at its rate, without any site."""
    result = cli("pool", "--machines", str(machines), "--rate", "0.0012", "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out)["plans"][0]["computed"] == standbys


def test_what_if_uses_the_sites_own_history(cli: Cli, gateway: FakeGateway) -> None:
    """Another size, the same failure rate."""
    result = cli("pool", "--machines", "1024", "--json")
    (plan,) = json.loads(result.out)["plans"]
    assert (plan["machines"], plan["failures"], plan["machine_days"]) == (1024, 2, 100.0)
    longer = cli("pool", "--machines", "1024", "--replenish-time", "2d", "--json")
    assert json.loads(longer.out)["plans"][0]["computed"] > plan["computed"]
    surer = cli("pool", "--machines", "1024", "--quantile", "0.9999", "--json")
    assert json.loads(surer.out)["plans"][0]["computed"] > plan["computed"]


def test_the_pool_shows_its_reasoning(cli: Cli, gateway: FakeGateway) -> None:
    """Size, rate, the switch beside it, costs."""
    out = cli("pool").out
    assert "target       2" in out
    assert "m4, m5" in out
    assert "2 failures in 100.0 machine-days" in out
    assert "a whole switch (4 machines" in out
    assert "SAVED" in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--quantile", "1.5"), "--quantile 1.5: expected a share between 0 and 1"),
        (("--replenish-time", "soon"), "--replenish-time 'soon': expected a time above 0"),
        (("--replenish-time", "0h"), "--replenish-time '0h'"),
    ],
)
def test_a_wrong_figure_is_named(cli: Cli, arguments: tuple[str, ...], named: str) -> None:
    """One line, and nothing is asked of any site."""
    result = cli("pool", "--machines", "4", "--rate", "0.1", *arguments)
    assert result.status == 1
    assert named in result.err


def test_machines_for_several_groups_need_a_rate(cli: Cli, gateway: FakeGateway) -> None:
    """The failure rate cannot be estimated where each group has a history of its own."""
    gateway.groups = ("a", "b")
    result = cli("pool", "--machines", "4")
    assert result.status == 1
    assert "groups a, b" in result.err


def test_of_many_sizes_only_those_that_matter_are_shown(cli: Cli) -> None:
    """None, about the target, about the cheapest; JSON has them all."""
    asked = ("pool", "--machines", "1024", "--rate", "2")
    out = cli(*asked).out
    assert "<- target" in out
    assert "<- cheapest" in out
    assert len(out.splitlines()) < 25
    assert len(json.loads(cli(*asked, "--json").out)["plans"][0]["costs"]) > 900
