"""Decision whether a job may start from zero: never silently, once it had saved anything.

A restore plan that finds no usable state is no decision yet. A store that does not answer is waited for; for a job
whose states are lost a person decides, unless its settings decided before; a job that never saved anything
starts from zero as always, and reports it.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RestorePlan, Tier
from holdfast.models.job import FromScratch
from holdfast.policies.config.policy import RestorePolicy
from holdfast.policies.join_names import join_names
from holdfast.policies.restore.restore_plan import NOTHING

_MOST_REASONS = 4


class Consequence(StrEnum):
    """The consequence of a restore plan."""

    GO_ON = "go_on"
    """Start by the plan; without a state in it, from zero."""
    WAIT = "wait"
    """Nothing is started; the question is asked again after a pause."""
    ASK = "ask"
    """A person decides."""


class PlanFacts(Frozen):
    """Known facts when a plan is made."""

    job: str
    reached: int
    """Furthest step of the job since its submission, according to the ledger."""
    saved: bool
    """Whether it saved any state since its submission, in any place."""
    plan: RestorePlan
    store_error: str = ""
    """Why S3 does not answer; empty: it answers, or was not asked."""
    silent: tuple[str, ...] = ()
    """Machines that may hold shards and do not answer."""
    gone: tuple[str, ...] = ()
    """Machines on which the newest epoch ran and which the job no longer has."""
    waited_s: float = 0.0
    """Seconds waited so far."""
    from_scratch: FromScratch | None = None
    """The job's own setting; None: the policy's."""


class Decision(Frozen):
    """The decision, and its reason."""

    act: Consequence
    why: str = ""
    options: tuple[str, ...] = ()
    """A person's options, as commands."""
    unknown: bool = False
    """S3 or machines do not answer: a usable state may be there all the same."""

    @property
    def summary(self) -> str:
        """The decision in words."""
        return "; ".join([self.why, *(f"or {each}" if n else each for n, each in enumerate(self.options))])


def decide(facts: PlanFacts, policy: RestorePolicy) -> Decision:
    """Decide whether to go on, wait or ask.

    Args:
        facts: the known facts.
        policy: the section ``restore`` of the policy file.
    """
    if facts.plan.tier is not None:
        return _with_state(facts, policy)
    if not facts.reached and not facts.saved:
        return Decision(
            act=Consequence.GO_ON, why="it has reported no step: where it begins is up to its script"
        )
    if missing := _away(facts):
        return _wait_or_ask(facts, policy, missing)
    if not facts.saved:
        return Decision(
            act=Consequence.GO_ON,
            why=f"no state of job {facts.job} was ever saved (it had reached step {facts.reached}): from scratch",
        )
    if _setting(facts, policy) is FromScratch.ALLOW:
        return Decision(act=Consequence.GO_ON, why=f"{_lost(facts)}. from_scratch is allow: from scratch")
    return Decision(act=Consequence.ASK, why=_lost(facts), options=_options(facts, policy))


def pause_s(tries: int, policy: RestorePolicy) -> float:
    """Return the pause after ``tries`` vain attempts: twice as long each time, to a limit."""
    return float(min(policy.pause_s * 2 ** min(tries, 32), policy.longest_pause_s))


def reads_store(plan: RestorePlan) -> bool:
    """Return whether some rank is to read S3."""
    return plan.tier is Tier.S3 or any(source.tier is Tier.S3 for source in plan.sources)


def _with_state(facts: PlanFacts, policy: RestorePolicy) -> Decision:
    if facts.store_error and reads_store(facts.plan):
        return _wait_or_ask(facts, policy, f"S3 does not answer ({facts.store_error})")
    return Decision(act=Consequence.GO_ON)


def _away(facts: PlanFacts) -> str:
    missing = [f"S3 does not answer ({facts.store_error})"] if facts.store_error else []
    missing += [f"{join_names(facts.silent)} do not answer"] if facts.silent else []
    return " and ".join(missing)


def _wait_or_ask(facts: PlanFacts, policy: RestorePolicy, missing: str) -> Decision:
    where = f"step {facts.plan.step} lies there" if facts.plan.tier else "nowhere else is a usable state"
    why = f"{missing}; {where}; the job had reached step {facts.reached}"
    if facts.waited_s < policy.wait_s:
        return Decision(act=Consequence.WAIT, why=why)
    waited = f"{why}; waited {facts.waited_s:.0f} s"
    return Decision(act=Consequence.ASK, why=waited, options=_options(facts, policy), unknown=True)


def _lost(facts: PlanFacts) -> str:
    reasons = [each for each in facts.plan.reasons if each != NOTHING][:_MOST_REASONS]
    found = "; ".join(reasons) or "machines hold no complete step, and S3 has none"
    return f"job {facts.job} had reached step {facts.reached}; no saved step is usable: {found}"


def _options(facts: PlanFacts, policy: RestorePolicy) -> tuple[str, ...]:
    """Return a person's options; nothing was started and nothing is deleted until the answer."""
    back = "what is missing is back"
    if facts.store_error:
        back = "S3 is back"
    elif facts.gone:
        one, names = len(facts.gone) == 1, join_names(facts.gone)
        back = f"machine {names} is back" if one else f"machines {names} are back"
    options = [f"`holdfast resume {facts.job}` once {back}"]
    if facts.plan.skipped or facts.plan.tier or facts.store_error:
        listed = f"`holdfast checkpoints list {facts.job}`"
        options.append(f"`holdfast resume {facts.job} --step N` for an older or suspect step ({listed})")
    if _setting(facts, policy) is not FromScratch.NEVER:
        options.append(f"`holdfast resume {facts.job} --from-scratch` for a start from zero")
    return tuple(options)


def _setting(facts: PlanFacts, policy: RestorePolicy) -> FromScratch:
    return facts.from_scratch or policy.from_scratch
