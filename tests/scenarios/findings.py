"""Past wrong decisions, each with the scenario, or the test with real processes, that covers it now."""

from __future__ import annotations

from collections.abc import Mapping

SCENARIOS: Mapping[str, tuple[str, ...]] = {
    "three independent kills a few steps apart ended a job for good": (
        "four-independent-kills-steps-apart-are-each-retried",
        "three-kinds-of-failure-one-after-the-other-are-each-retried",
    ),
    "one rank's exception rolled back code that ran for ten days": (
        "one-rank-raises-in-code-that-ran-for-days",
        "old-code-that-raises-once-on-one-rank-is-retried",
    ),
    "a kill from outside rolled new code back": (
        "kills-of-different-ranks-minutes-after-an-update-leave-the-new-code",
    ),
    "steps computed again after a fall-back to S3 were no progress": (
        "steps-computed-again-after-a-fall-back-to-s3-are-progress",
    ),
    "a job submitted again inherited its namesake's ladder": (
        "job-submitted-anew-owes-nothing-for-its-namesake",
    ),
    "a resume by hand did not reset the ladder": (
        "a-persons-resume-starts-a-fresh-ladder",
        "crash-minutes-after-a-persons-resume-is-a-first-one",
    ),
    "a machine that came after the pool was empty was not taken": (
        "a-machine-that-registers-after-the-pool-was-empty-is-taken-at-once",
        "an-empty-pool-is-tried-again-after-growing-pauses",
    ),
    "a spent ladder was never tried again": (
        "a-spent-ladder-is-started-once-more-after-a-while",
        "a-new-code-version-is-taken-at-once-after-a-spent-ladder",
    ),
    "an alert that was over while approval was asked changed nothing": (
        "the-alert-is-resolved-while-approval-is-missing",
        "a-refused-eviction-whose-alert-is-over-by-then-starts-the-job-at-once",
    ),
    "a job that wanted the last standby stayed failed": (
        "the-last-standby-that-another-job-took-is-waited-for",
    ),
    "a slow or suspicious job was stopped first and left dead": (
        "a-slow-job-is-not-stopped-to-ask-and-runs-on-when-refused",
        "a-slow-job-is-not-stopped-when-no-machine-could-take-over",
        "a-jump-of-the-loss-does-not-stop-the-job-when-nobody-approves",
    ),
    "rank 0 that prepares data was evicted again and again": (
        "rank-0-that-tokenises-for-half-an-hour-before-the-first-step",
        "rank-0-that-prepares-data-at-every-start-costs-one-machine-at-most",
        "rank-0-that-stands-out-at-every-start-costs-no-machine",
    ),
    "an undeclared evaluation was a hang after 6 s": ("an-evaluation-that-nobody-declared-computes",),
    "a job that spins was never found": ("a-job-that-spins-for-half-an-hour",),
    "a rank that ended with status 0 left the others undetected": (
        "a-rank-that-ends-before-the-others-is-named-and-costs-no-machine",
    ),
    "a machine whose agent restarts again and again was never blamed": (
        "three-agent-restarts-on-one-machine-and-it-goes",
        "a-lost-machine-that-came-back-three-times-goes",
    ),
    "a standby that flaps was swapped in": ("a-standby-that-flaps-is-not-swapped-in",),
    "a late root was ignored until after one more restart": (
        "xid-79-after-the-crash-that-it-caused",
        "a-second-machine-that-is-lost-joins-the-first",
    ),
    "six of a job's ten machines were evicted one by one": (
        "the-fifth-machine-of-ten-within-the-hour-is-not-evicted",
    ),
    "cascading failures from a clock that is off opened an incident after ten minutes": (
        "echoes-alone-from-a-clock-ten-minutes-ahead-are-a-crash-in-seconds",
    ),
    "a port that fails again never counted where the clock is off": (
        "a-port-that-goes-down-twice-counts-on-a-machine-whose-clock-is-ten-minutes-behind",
    ),
    "a rank that died beside a slow job left it hanging": (
        "a-rank-that-is-killed-while-a-slow-machine-is-looked-for",
        "a-rank-that-is-killed-while-a-slow-machines-eviction-awaits-approval",
    ),
    "a refused eviction left the job standing for a minute": (
        "a-refused-eviction-of-a-machine-that-can-run-starts-the-job-at-once",
    ),
    "a signal while a person held the job was ignored": (
        "xid-79-while-a-person-holds-the-job-is-acted-on-when-the-hold-ends",
    ),
    "a refused command line was replayed as wrong arithmetic": (
        "arguments-that-are-refused-on-all-ranks-twice-are-the-users-and-a-person-reads-the-message",
    ),
    "a machine was evicted for the loss of its former life": (
        "a-lost-machine-that-is-back-before-anything-was-done-stays",
    ),
    "a person's eviction, update or size waited behind a question about a slow machine": (
        "an-update-that-cannot-wait-does-not-wait-for-the-answer-about-a-slow-machine",
        "a-person-evicts-the-slow-machine-itself-instead-of-answering",
        "another-size-is-asked-for-while-a-slow-machine-is-asked-about",
    ),
    "a person who evicted a machine was asked whether to evict it": (
        "a-person-who-evicts-is-not-asked-whether-to-evict",
        "a-person-evicts-the-machine-that-is-asked-about-which-is-a-yes",
    ),
    "a job that was done was started again by a late yes": (
        "the-job-is-done-while-a-slow-machines-eviction-awaits-approval",
    ),
    "a job that fills its disks lost one machine after the other": (
        "a-job-that-fills-the-disks-of-its-machines-costs-one-of-them-and-not-the-next",
    ),
    "a cooling fault stopped a slow job": ("a-cooling-fault-in-the-room-is-no-machines",),
    "a loss that is no number, reported after a crash, left bad checkpoints to be restored": (
        "a-rank-that-aborts-and-then-a-loss-that-is-no-number",
        "a-script-that-asserts-on-a-loss-that-is-no-number-says-so-before-the-number-is-heard",
    ),
    "an alert was refused because Prometheus had set the label of the job": (
        "an-xid-from-prometheus-whose-job-label-is-the-scrape-configuration",
    ),
    "a machine that came back was waited for to be approved for eviction": (
        "the-machine-comes-back-while-its-evictions-approval-is-missing-and-the-job-goes-on-at-once",
    ),
    "a job that fell again after a machine was replaced was started six times without a look": (
        "the-ranks-on-the-machine-that-took-over-do-not-start-and-a-check-accuses-it",
        "new-code-that-falls-again-after-a-machine-was-replaced-goes-back",
        "the-standby-of-a-planned-move-does-not-start-its-ranks-and-a-check-accuses-it",
    ),
    "the version to which a failed update went back was marked bad as well": (
        "a-job-comes-up-neither-with-an-update-nor-with-what-ran-before-and-a-check-names-the-machine",
    ),
    "a job that was slow for no machine's fault was stopped for a search every few minutes": (
        "a-search-that-found-no-machine-does-not-stop-a-job-again-that-stays-slow",
        "a-search-that-found-no-machine-does-not-keep-one-that-lags-afterwards",
    ),
    "a switch that was away for seconds cost all machines below it": (
        "three-machines-of-a-switch-that-was-away-for-twenty-seconds-stay",
        "the-one-machine-of-a-switch-that-does-not-come-back-with-it-goes",
        "more-machines-than-may-go-were-silent-and-one-restarted-and-all-stay",
    ),
    "a machine whose alert was over was asked about beside another one": (
        "of-two-machines-that-wait-for-the-breaker-the-one-whose-alert-is-over-stays",
    ),
    "a job went on from wrong weights after the machine that had made them was evicted": (
        "a-machine-is-found-after-a-jump-and-the-job-goes-on-from-before-it",
        "a-machine-is-found-after-a-jump-that-memory-does-not-reach-back-to",
    ),
    "both machines of a job of two that failed were one more than may go": (
        "both-machines-of-a-job-lose-a-gpu-at-once-and-both-are-replaced",
        "both-machines-of-a-job-are-gone-at-once-and-both-are-replaced",
    ),
    "a job of one machine spent its ladder in place while a standby was idle": (
        "the-same-crash-spends-the-ladder-of-a-job-of-one-machine-and-a-standby-is-tried",
        "the-same-crash-on-the-standby-too-does-not-cost-that-one",
    ),
    "errors of the GPU once an hour were retried in place for ever": (
        "cuda-errors-on-one-machine-each-hour-and-it-goes-at-the-third-of-a-day",
        "cuda-errors-on-two-machines-each-hour-accuse-neither",
    ),
    "a loss that jumps at one step, or is no number there, was a matter of machines": (
        "a-nan-that-comes-twice-at-one-step-is-skipped-where-the-job-file-allows-it",
        "a-jump-that-comes-twice-at-one-step-does-not-stop-the-job-again",
    ),
    "a check that failed on every machine stopped the job for a person": (
        "killed-rank-while-a-check-fails-on-every-machine-is-retried",
    ),
    "a job whose loss jumps was stopped at each jump": (
        "jumps-at-two-steps-are-each-looked-into",
        "a-loss-that-jumps-again-and-again-does-not-stop-the-job-for-a-third-search",
    ),
    "a GPU that was lost while the job stood was ignored, and the job started on it": (
        "xid-79-after-a-spent-ladder-names-the-cause-and-the-job-goes-on-at-once",
        "a-second-machine-fails-while-a-standby-for-the-first-is-waited-for",
    ),
    "a machine was evicted for a port that its switch had taken along": (
        "a-rank-is-killed-on-a-machine-whose-switch-came-and-went-three-times",
        "a-rank-is-killed-on-the-one-machine-of-a-switch-whose-port-came-and-went-three-times",
    ),
    "a port that went down on machine after machine in one place cost all of them": (
        "the-third-machine-in-one-place-of-the-job-whose-port-goes-down-twice-stays",
    ),
    "replicas that differ at one step cost a second machine, and the data was named": (
        "replicas-on-two-machines-that-differ-at-one-step-accuse-the-first-alone-and-no-data",
        "replicas-that-differ-twice-at-one-step-say-nothing-of-its-data",
    ),
    "a summary named the rank that lost its peer, not the one that was killed": (
        "a-segfault-that-is-heard-after-exceptions-of-those-who-lost-the-rank-is-what-people-read",
    ),
    "a summary named the version that a fix had replaced": (
        "the-fix-comes-while-the-code-that-raised-is-rolled-back-and-the-summary-says-what-runs",
    ),
}
"""Decisions: names of scenarios of this folder."""

TESTS: Mapping[str, tuple[str, ...]] = {
    "children of a dead rank outlived pause and restart, with ports, shared memory and files": (
        "tests/agent/ranks/test_remains.py::test_what_ranks_leave_is_gone_after_a_fence",
        "tests/agent/ranks/test_remains.py::test_shared_memory_of_ranks_is_gone_after_a_fence",
    ),
    "processes outlived an agent": (
        "tests/agent/ranks/test_remains.py::test_the_next_agent_ends_what_a_dead_one_left",
        "tests/drivers/test_local.py::test_orphans_of_a_dead_agent_are_found_and_killed",
    ),
    "a script that handles SIGTERM was killed at once": (
        "tests/agent/ranks/test_stop_grace.py::test_a_script_that_handles_sigterm_may_finish",
    ),
    "a deleted deployment was noticed by no person": (
        "tests/deployments/gateway/runs/test_prefect_away.py::"
        "test_a_deleted_deployment_is_reported_to_a_person_and_its_incident_runs_without_prefect",
    ),
    "a run that no worker starts (a paused deployment) was waited for": (
        "tests/deployments/gateway/runs/test_reconcile.py::"
        "test_run_that_is_never_started_is_followed_by_the_next_attempt",
    ),
    "the example playbook left clocks lowered": (
        "examples/playbooks/tests/test_thermal_throttling.py::test_the_attempt_after_a_killed_one_lets_the_clocks_go",
    ),
    "a rank that died beside a slow job left it hanging, with real ranks": (
        "tests/e2e/test_on_call.py::test_a_rank_that_dies_while_a_slow_machine_is_looked_for_ends_the_search",
    ),
    "a question stayed in Prefect after it decided nothing any more": (
        "tests/e2e/test_on_call.py::test_a_question_that_a_dead_rank_answers_is_taken_back",
        "tests/e2e/test_on_call.py::test_the_question_about_a_job_that_is_stopped_is_taken_back",
    ),
    "a signal while a person held the job was ignored, with real ranks": (
        "tests/e2e/test_on_call.py::test_a_signal_about_a_held_job_waits_where_people_see_it",
    ),
    "a refused command line was replayed as wrong arithmetic, with a real script": (
        "tests/e2e/test_on_call.py::test_a_refused_command_line_is_shown_in_its_own_words",
    ),
    "a machine was evicted for its former life, with a real agent": (
        "tests/e2e/test_on_call.py::test_a_machine_that_came_back_while_its_eviction_was_asked_about_stays",
    ),
    "a refused eviction left the job standing for a minute, with real ranks": (
        "tests/e2e/test_on_call.py::test_after_a_no_the_job_runs_on_at_once",
    ),
    "independent kills a few steps apart ended a job for good, with real ranks": (
        "tests/e2e/test_habits.py::test_independent_kills_steps_apart_are_each_retried",
    ),
    "an undeclared evaluation was a hang, with real ranks": (
        "tests/e2e/test_habits.py::test_an_undeclared_evaluation_is_no_hang",
    ),
    "a late root was ignored until one more restart, with a real crash": (
        "tests/e2e/test_habits.py::test_a_root_that_joins_late_takes_the_machine_with_it",
    ),
    "a stopped process cost its machine at once, with a real signal": (
        "tests/e2e/test_playbooks.py::test_hanging_rank_is_found_by_its_stack",
    ),
}
"""Findings that take real processes, or are no decision: their tests, by file and name."""
