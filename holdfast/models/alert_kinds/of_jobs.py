"""Signals of a job as a whole: its progress, its numbers, its pace and its checkpoints."""

from __future__ import annotations

from holdfast.models.alert_kinds.kind import Kind, SignalScope
from holdfast.models.alert_kinds.meaning import alone
from holdfast.models.classes import IncidentClass

HANG = Kind(
    "hang",
    SignalScope.JOB,
    "No progress: two of four signals in one window, or what GPUs and ports show alone.",
    evidence="signals, silent_s, window_s, ranks",
    meaning=alone(IncidentClass.JOB_HANG),
    precedence=630,
    every="intervals.activity_s",
)
NON_FINITE = Kind(
    "non_finite",
    SignalScope.JOB,
    "Loss or gradient norm of a rank is NaN or infinite.",
    evidence="step, metric, value",
    # ByteRobust (arXiv 2509.16293, section 4): NaN and a jump of 5x are fault signals.
    meaning=alone(IncidentClass.NAN_LOSS, 1.0),
    precedence=600,
)
METRIC_JUMP = Kind(
    "metric_jump",
    SignalScope.JOB,
    "Loss or gradient norm of a rank is a multiple of its median, for some steps.",
    evidence="step, metric, value, median, factor",
    meaning=alone(IncidentClass.SILENT_CORRUPTION, 0.6),
    precedence=620,
    thresholds=("metrics.jump_factor", "metrics.jump_deviations", "metrics.jump_tail", "metrics.jump_steps"),
)
REPLICA_DIFFERS = Kind(
    "replica_differs",
    SignalScope.JOB,
    "Weights or optimizer state of data-parallel ranks, which must be the same bit for bit, are not.",
    evidence="step, ranks (odd ones), paths, last_good_step (at which they were the same), detail; names a machine "
    "when a majority is right",
    meaning=alone(IncidentClass.SILENT_CORRUPTION, 0.95),
    precedence=610,
    thresholds=("replicas.every_steps", "replicas.learn", "replicas.few"),
    accuses=True,
)
THROUGHPUT_DECLINE = Kind(
    "throughput_decline",
    SignalScope.JOB,
    "Steps take lastingly longer than the job's own median, checkpoint stalls left out.",
    evidence="value, limit, median (seconds), ranks (slowest)",
    meaning=alone(IncidentClass.FAIL_SLOW, 0.8),
    precedence=640,
    thresholds=("throughput.slower", "throughput.deviations", "throughput.lasting_s"),
    every="throughput.every_s",
)
MFU_DECLINE = Kind(
    "mfu_decline",
    SignalScope.JOB,
    "Model FLOPs utilisation (`session.step(..., mfu=)`) is lastingly lower than the job's own median.",
    evidence="value, limit, median (share)",
    meaning=alone(IncidentClass.FAIL_SLOW, 0.8),
    precedence=650,
    thresholds=("throughput.slower", "throughput.deviations", "throughput.lasting_s"),
    every="throughput.every_s",
)
STRAGGLER = Kind(
    "straggler",
    SignalScope.JOB,
    "A rank is lastingly slower in one phase than its peers of the same pipeline stage.",
    evidence="phase, value, median (seconds), factor, rounds",
    meaning=alone(IncidentClass.FAIL_SLOW, 0.7),
    precedence=660,
    thresholds=("straggler.slower", "straggler.rounds", "straggler.most_share"),
    every="straggler.every_s",
    accuses=True,
)
UNRESTORABLE = Kind(
    "unrestorable",
    SignalScope.JOB,
    "A rehearsal of a restore failed while the job runs.",
    evidence="step, tier, problems (path in the state, what is wrong), detail",
    # What would be lost with the next fault: any other signal comes first.
    meaning=alone(IncidentClass.CHECKPOINT_UNRESTORABLE, 0.95),
    precedence=700,
)
