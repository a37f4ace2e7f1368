"""Signals of ports and switches."""

from __future__ import annotations

from holdfast.models.alert_kinds.kind import Kind, SignalScope
from holdfast.models.alert_kinds.meaning import Beside, again, alone, explains
from holdfast.models.classes import IncidentClass

_EVERY = "intervals.network_s"

# ByteRobust (arXiv 2509.16293, section 4): network alerts act at the second within five minutes.
NIC_DOWN = Kind(
    "nic_down",
    SignalScope.NETWORK,
    "An InfiniBand or Ethernet port that was up is down.",
    evidence="device, state",
    meaning=again(IncidentClass.NETWORK_FAULT, Beside.RAISED, Beside.HANG),
    precedence=410,
    thresholds=("network.interfaces",),
    every=_EVERY,
    repeats=True,
    flaps=True,
)
NIC_FLAPPING = Kind(
    "nic_flapping",
    SignalScope.NETWORK,
    "A port went down and came back.",
    evidence="device, value (changes in the window)",
    meaning=again(IncidentClass.NETWORK_FAULT, Beside.RAISED, Beside.HANG),
    precedence=420,
    thresholds=("network.interfaces",),
    every=_EVERY,
    repeats=True,
    flaps=True,
)
NIC_ERRORS = Kind(
    "nic_errors",
    SignalScope.NETWORK,
    "A port's error counters grow: symbol errors, link recoveries, CRC errors.",
    evidence="device, counter",
    meaning=explains(IncidentClass.NETWORK_FAULT, Beside.HANG, Beside.SLOW, confidence=0.7),
    precedence=440,
    thresholds=("network.errors_per_minute",),
    every=_EVERY,
    repeats=True,
)
PACKET_LOSS = Kind(
    "packet_loss",
    SignalScope.NETWORK,
    "A port drops packets.",
    evidence="device, value and limit (share of its packets)",
    meaning=again(IncidentClass.NETWORK_FAULT, Beside.RAISED, Beside.HANG, Beside.SLOW),
    precedence=430,
    thresholds=("network.loss_share", "network.loss_packets"),
    every=_EVERY,
    repeats=True,
)
SWITCH_DOWN = Kind(
    "switch_down",
    SignalScope.JOB,
    "Several machines under one switch lost the network at once, in two rounds in a row.",
    evidence="switch, machines; names no machine",
    meaning=alone(IncidentClass.NETWORK_FAULT, beside=(Beside.RAISED, Beside.HANG), same_machine=False),
    precedence=400,
    thresholds=("network.switches", "network.switch_share", "network.switch_misses"),
    every=_EVERY,
)
