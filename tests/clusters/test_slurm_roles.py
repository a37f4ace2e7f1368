"""A job with roles on a real Slurm cluster: replicas run on its nodes, and come back where their node is lost."""

from __future__ import annotations

import pytest

from holdfast.models.alert import IncidentClass
from tests.clusters.slurm import Cluster
from tests.e2e.site import Site
from tests.e2e.test_roles import Roles, kill_rollouts, require_the_trainer_went_on, submit
from tests.e2e.waiting import DEADLINE_S, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(900)]


@pytest.mark.parametrize("own", [{}, {"rollout": 1}], ids=["beside the ranks", "on a node of its own"])
def test_replicas_outlive_their_processes_and_their_node(
    slurm_site: Site, slurm_cluster: Cluster, own: dict[str, int]
) -> None:
    site, name = slurm_site, "rl"
    submit(site, name, "rl", **own)
    roles = Roles(site, name)
    wait_for(roles.describe, lambda: roles.step() >= 3 and roles.all_run("rollout"), 300)
    before, at_step = roles.trainer(), roles.step()
    kills = kill_rollouts(roles, 4, DEADLINE_S, 0.5)
    assert kills == 4, roles.describe()
    wait_for(roles.describe, lambda: roles.all_run("rollout") and roles.step() > at_step + 20)
    require_the_trainer_went_on(roles, before, name)

    places = {place["machine"] for place in roles.role("rollout")["places"]}
    lost = sorted(places)[-1]
    assert lost in slurm_cluster.nodes
    ranks = set(site.job(name).machines)
    assert (lost in ranks) == (not own)
    slurm_cluster.kill_node(lost)
    if lost in ranks:
        died = site.wait_recovered(name, 1)
        assert (died.incident_class, died.machine) == (IncidentClass.MACHINE_FAULT, lost)
    wait_for(
        roles.describe,
        lambda: (
            roles.all_run("rollout")
            and lost not in {place["machine"] for place in roles.role("rollout")["places"]}
        ),
        300,
    )
    at_step = roles.step()
    wait_for(roles.describe, lambda: roles.step() > at_step + 20)
    if own:
        require_the_trainer_went_on(roles, before, name)
    site.http.post(f"/v1/jobs/{name}/stop").raise_for_status()
    slurm_cluster.start_node(lost)
