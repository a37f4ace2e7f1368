"""Compare what came out of a scenario with what was expected; each difference is a sentence."""

from __future__ import annotations

from holdfast.testing.play import Played
from holdfast.testing.scenario import Scenario


def wrong_actions(scenario: Scenario, played: Played) -> list[str]:
    """List acts that should not have happened. One of these outweighs everything else."""
    expected = scenario.expect
    wrong = [f"evicted {name}" for name in played.evicted if name not in expected.culprits]
    if scenario.quiet:
        return wrong + [f"did {kind}" for kind in played.kinds]
    left = list(expected.actions)
    for kind in played.kinds:
        if kind in left:
            left.remove(kind)
        else:
            wrong.append(f"did {kind}")
    if expected.code is not None and played.job.code_version != expected.code:
        wrong.append(f"runs code {played.job.code_version}")
    return wrong


def misses(scenario: Scenario, played: Played) -> list[str]:
    """List expected results that are missing."""
    expected = scenario.expect
    if scenario.quiet:
        acting = [i for i in played.incidents if i.state.value != "dismissed"]
        return [f"opened {incident.incident_class.value}" for incident in acting]
    found: list[str] = []
    if len(played.incidents) != expected.incidents:
        return [f"{len(played.incidents)} incidents instead of {expected.incidents}: {played.outcomes}"]
    first = played.incidents[0]
    if first.incident_class is not expected.incident_class:
        found.append(f"class {first.incident_class.value}: {'; '.join(first.reasons)}")
    if set(played.evicted) != set(expected.culprits):
        found.append(f"evicted {sorted(played.evicted)} instead of {sorted(expected.culprits)}")
    if expected.scope and {expected.scope.value} != set(played.evicted.values()):
        found.append(f"scopes {played.evicted}")
    if played.incidents[-1].state is not expected.ends:
        found.append(f"ended {first.state.value}: {first.summary}")
    if expected.serve and played.job.machines != expected.serve:
        found.append(f"served by {', '.join(played.job.machines)}")
    if tuple(played.kinds) != expected.actions:
        found.append(f"did {', '.join(played.kinds)}")
    if expected.joined and not any("joined" in each for each in (*played.outcomes, *played.answers)):
        found.append(f"nothing joined an incident: {played.outcomes}")
    found += _of_states(scenario, played)
    if first.attempt != expected.attempts:
        found.append(f"attempt {first.attempt}")
    return found


def _of_states(scenario: Scenario, played: Played) -> list[str]:
    """List wrong steps restored from, wrong suspect checkpoints, and a wrong summary."""
    expected, found = scenario.expect, []
    if expected.restored is not None and played.restored != expected.restored:
        found.append(f"restored steps {played.restored}")
    if expected.suspect is not None and played.suspect != expected.suspect:
        found.append(f"suspect checkpoints {played.suspect}")
    if expected.answers and not any(expected.answers in each for each in played.answers):
        found.append(f"answered: {played.answers}")
    if expected.says not in played.incidents[-1].summary:
        found.append(f"said: {played.incidents[-1].summary}")
    return found
