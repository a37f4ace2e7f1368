"""Faults other than Xids that a kernel log shows: memory, disks, file systems, processors, network."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.inspection.kernel_log import KernelLog
from holdfast.models.alert import AlertKind
from holdfast.policies.classify.identity import in_order
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate import repeated
from tests.agent.inspection.kernel_lines import write
from tests.agent.inspection.kit import LIMITS


def test_media_that_can_be_taken_out_are_no_disks(log: Path, tmp_path: Path) -> None:
    """A BMC's virtual medium that is detached fails every read; the machine's own disks are reported."""
    for name, removable in (("sda", "0\n"), ("sdb", "1\n")):
        (tmp_path / "block" / name).mkdir(parents=True)
        (tmp_path / "block" / name / "removable").write_text(removable)
    detector = KernelLog("m0", log, LIMITS.intervals, block=tmp_path / "block")
    write(log, *(f"I/O error, dev {name}, sector 1 op 0x0:(READ)" for name in ("sdb", "sdb1", "sda1", "sdc")))
    assert [alert.evidence["device"] for alert in detector.poll()] == ["sda1", "sdc"]


def test_file_systems_of_images_and_of_sticks_are_not_the_machines(log: Path, tmp_path: Path) -> None:
    """A container's image that is damaged, a stick that is drawn."""
    (tmp_path / "block" / "sdb").mkdir(parents=True)
    (tmp_path / "block" / "sdb" / "removable").write_text("1\n")
    detector = KernelLog("m0", log, LIMITS.intervals, block=tmp_path / "block")
    names = ("loop5", "sdb1", "nvme0n1p1")
    write(
        log, *(f"EXT4-fs error (device {name}): ext4_find_entry:1455: inode #2: comm ls:" for name in names)
    )
    write(
        log, "EXT4-fs (loop2): Remounting filesystem read-only", "XFS (loop1): Corruption detected. Unmount"
    )
    assert [alert.evidence["device"] for alert in detector.poll()] == ["nvme0n1p1"]


OTHERS = [
    ("Out of memory: Killed process 4711 (python3) total-vm:1kB", "oom_kill", {"pid": 4711, "cgroup": False}),
    (
        "Memory cgroup out of memory: Killed process 12 (pt_data_worker) total-vm:9kB, anon-rss:1kB",
        "oom_kill",
        {"process": "pt_data_worker", "cgroup": True},
    ),
    (
        "Kernel panic - not syncing: Fatal exception",
        "kernel_panic",
        {"what": "panic", "reason": "Fatal exception"},
    ),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:1]", "kernel_panic", {"what": "lockup"}),
    ("BUG: unable to handle page fault for address: ffff", "kernel_panic", {"what": "oops"}),
    (
        "python3[4711]: segfault at 10 ip 00007f12 sp 00007ffd error 4 in libnccl.so.2.27.3[7f12+2000] likely",
        "segfault",
        {"library": "libnccl.so.2.27.3", "pid": 4711, "process": "python3"},
    ),
    (
        "traps: python3[99] general protection fault ip:7f sp:7f error:0 in libtorch_cuda.so[7f+1]",
        None,
        {},
    ),
    (
        "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2: comm ls: reading directory",
        "filesystem_error",
        {"device": "nvme0n1p1", "filesystem": "ext4"},
    ),
    (
        "XFS (dm-0): Corruption detected. Unmount and run xfs_repair",
        "filesystem_error",
        {"device": "dm-0"},
    ),
    ("XFS (sdb1): Mounting V5 Filesystem", None, {}),
    *[
        (text, "disk_fault", {"device": "0000:64:00.0"})
        for text in (
            "smartpqi 0000:64:00.0: controller offline: reason code 0x4 (no controller heartbeat detected)",
            "hpsa 0000:64:00.0: controller lockup detected: 0x00130000 after 30",
        )
    ],
    ("smartpqi 0000:64:00.0: scsi 1:0:0:0: Direct-Access ATA RAID-0 SSDSmartPathCap+ En+", None, {}),
    (
        "NVRM: GPU0 _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 10 sequence 24013!",
        "gpu_lost",
        {"pattern": "gpu_state"},
    ),
    *[
        (f"NVRM: GPU0 {text}", None, {})
        for text in (
            "_issueRpcAndWait: rpcSendMessage failed with status 0x00000065 for fn 10 sequence 7!",
            "nvAssertFailedNoLog: Assertion failed: (status == NV_OK) || (status == NV_ERR_GPU_IS_LOST) @ a.c:7",
        )
    ],
    ("EXT4-fs (sda1): Remounting filesystem read-only", "filesystem_error", {"device": "sda1"}),
    ("BTRFS critical (device sdc): corrupt leaf", "filesystem_error", {"filesystem": "btrfs"}),
    ("nfs: server 10.0.0.1 not responding, still trying", "mount_unresponsive", {"device": "10.0.0.1"}),
    ("nfs: server 10.0.0.1 OK", None, {}),
    (
        "libceph: osd3 (1)10.0.0.1:6800 socket closed (con state OPEN)",
        "mount_unresponsive",
        {"device": "osd3", "recovers": True},
    ),
    ("LustreError: 166-1: MGC10.1.1.1@o2ib: Connection to MGS (at 10.1.1.2@o2ib) was lost", None, {}),
    (
        "Out of memory (oom_kill_allocating_task): Killed process 41 (python3) total-vm:1kB",
        "oom_kill",
        {"pid": 41, "cgroup": False},
    ),
    ("general protection fault: 0000 [#1] SMP PTI", "kernel_panic", {"what": "oops"}),
    ("divide error: 0000 [#1] SMP NOPTI", "kernel_panic", {"what": "oops"}),
    *[
        (f"mce: [Hardware Error]: CPU 4: Machine Check: 0 Bank {text}", "host_fault", {"check": check})
        for text, check in (
            ("4: a600000000020408", "machine_check"),
            ("5: bea0000000000108", "machine_check"),
            ("17: 9c2040000000011b", "machine_check_noted"),
            ("9: cc00004000010091", "machine_check_noted"),
            ("128: 000000008844000f", "machine_check_noted"),
        )
    ],
    ("blk_update_request: I/O error, dev sda, sector 12 op 0x0:(READ)", "disk_fault", {"device": "sda"}),
    ("I/O error, dev nvme1n1, sector 1 op 0x1:(WRITE)", "disk_fault", {"device": "nvme1n1"}),
    ("Buffer I/O error on dev sda1, logical block 0", "disk_fault", {"device": "sda1"}),
    ("nvme nvme0: I/O 24 QID 3 timeout, reset controller", "host_fault", {"check": "disk_reset"}),
    ("I/O error, dev loop3, sector 1 op 0x0:(READ)", None, {}),
    ("ata1: hard resetting link", "host_fault", {"device": "ata1"}),
    (
        "LustreError: 11-0: fs-OST0001: This client was evicted by fs-OST0001",
        "mount_unresponsive",
        {"filesystem": "lustre"},
    ),
    ("LustreError: 1:0:(ldlm.c:7:f()) some noise", None, {}),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", "host_fault", {"check": "disk_reset"}),
    ("nvme nvme0: Removing after probe failure status: -19", "disk_fault", {"device": "nvme0"}),
    ("nvme nvme0: 8/0/0 default/read/poll queues", None, {}),
    (
        "mce: [Hardware Error]: Machine check events logged",
        "host_fault",
        {"check": "machine_check_noted", "harmless": True},
    ),
    (
        "mce: [Hardware Error]: CPU 24: Machine Check Exception: 5 Bank 7: be00000000800400",
        "host_fault",
        {"check": "machine_check"},
    ),
    (
        "mce: [Hardware Error]: Deferred error, no action required.",
        "host_fault",
        {"check": "machine_check_noted", "harmless": True},
    ),
    (
        "mce: [Hardware Error]: Uncorrected, software restartable error.",
        "host_fault",
        {"check": "machine_check"},
    ),
    ("INFO: task python3:4711 blocked for more than 120 seconds.", "host_fault", {"check": "hung_task"}),
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "gpu_lost", {"pci": "0000:3b:00.0"}),
    ("NVRM: GPU at PCI:0000:3b:00: GPU-2d3f-uuid", None, {}),
    ("NVRM: GPU 0000:c1:00.0: RmInitAdapter failed! (0x26:0x56:1474)", "gpu_lost", {"pci": "0000:c1:00.0"}),
    ("NVRM: GPU6 RmInitAdapter: Cannot initialize GSP firmware RM", "gpu_lost", {}),
    ("NVRM RmInitAdapter: Cannot initialize GSP firmware RM", "gpu_lost", {}),
    ("NVRM: GPU0 iovaspaceDestruct_IMPL: 1 left-over mappings in IOVAS 0x100", None, {}),
    ("vfio: device 0000:5e:00.0: Fatal error of its own", None, {}),
    *[
        (f"amdgpu 0000:08:00.0: {text} hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", "gpu_lost", {})
        for text in ("amdgpu: uncorrectable", "{1}uncorrectable", "amdgpu: {12} Uncorrectable")
    ],
    *[
        (f"amdgpu 0000:08:00.0: {text}", "gpu_ecc_uncorrectable", {"pci": "0000:08:00.0", "value": value})
        for text, value in (
            ("{1}1 uncorrectable hardware errors detected in umc block", 1),
            ("amdgpu: 20 uncorrectable hardware errors detected in UMC block", 20),
            ("amdgpu: {7}socket: 0, die: 1, 3 new uncorrectable hardware errors detected in gfx block", 3),
            (
                "amdgpu: 1 uncorrectable hardware errors and 2 deferred hardware errors detected in UMC block",
                1,
            ),
        )
    ],
    *[
        (f"amdgpu 0000:08:00.0: {text} hardware errors detected in umc block", None, {})
        for text in (
            "{1}1 correctable",
            "amdgpu: 0 uncorrectable",
            "amdgpu: no uncorrectable",
            "amdgpu: {7}socket: 0, die: 1, 1 new deferred",
            "amdgpu: 0 uncorrectable hardware errors and 1 deferred",
        )
    ],
    *[
        (
            f"amdgpu 0000:08:00.0: amdgpu: {count} uncorrectable hardware errors detected in umc block",
            "host_fault",
            {"check": "gpu_counter_unreadable", "harmless": True, "value": count},
        )
        for count in (65535, 8 * 65535, 1048560, 2**32 - 1)
    ],
    (
        "amdgpu 0000:08:00.0: amdgpu: 65536 uncorrectable hardware errors detected in umc block",
        "gpu_ecc_uncorrectable",
        {"value": 65536},
    ),
    *[
        (text, "host_fault", {"check": "nic_tx_hang", "recovers": True, "pci": "0000:b1:00.0"})
        for text in (
            "igb 0000:b1:00.0: Detected Tx Unit Hang",
            "e1000e 0000:b1:00.0 eth0: Detected Hardware Unit Hang:",
            "ice 0000:b1:00.0 ens8f0np0: tx_timeout: VSI_num: 6, Q 14, NTC: 0x0, HW_HEAD: 0x0",
            "mlx5_core 0000:b1:00.0 eth1: TX timeout on queue: 19, SQ: 0xab6, CQ: 0xd4a",
            "bnxt_en 0000:b1:00.0 eth1: TX timeout detected, starting reset task!",
        )
    ],
    ("ice 0000:b1:00.0 ens8f0np0: tx_timeout recovery level 1, txqueue 14", None, {}),
    *[
        (text, "host_fault", {"check": "nic_command_timeout", "recovers": True})
        for text in (
            "mlx5_core 0000:b1:00.0: wait_func:964: 2RST_QP(0x50a) timeout. Will cause a leak of a command resource",
            "efa 0000:b1:00.0 rdmap160s26: The device didn't send any completion for admin cmd CREATE_QP(6) status 0",
            "infiniband efa_0: Wait for completion (polling) timeout",
        )
    ],
    ("ena 0000:00:05.0 eth0: Wait for completion (polling) timeout", None, {}),
    (
        "efa 0000:b1:00.0 rdmap160s26: Failed to process command DEREG_MR (opcode 8) comp_status 7 err -22",
        None,
        {},
    ),
    *[
        (text, "host_fault", {"check": "nic_tx_timeout", "device": device})
        for text, device in (
            ("NETDEV WATCHDOG: eth1 (mlx4_core): transmit queue 0 timed out", "eth1"),
            ("Oct 15 19:26:35 n7 kernel: NETDEV WATCHDOG: eth2 (igb): transmit queue 5 timed out", "eth2"),
            (
                "Oct 15 19:26:35 n7 kernel: [   12.5] NETDEV WATCHDOG: eth3 (igb): transmit queue 5 timed out",
                "eth3",
            ),
            ("r8125 0000:22:04.0 eth4: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5010 ms", "eth4"),
            (
                "Mar 15 18:17:01 n7 kernel: ice 0000:b1:00.0 ens8f0np0: NETDEV WATCHDOG: CPU: 38: "
                "transmit queue 14 timed out 8069 ms",
                "ens8f0np0",
            ),
            ("Apr  7 02:41:03 n7 kernel: NETDEV WATCHDOG: eth0: transmit timed out", "eth0"),
        )
    ],
    *[
        (text, None, {})
        for text in (
            "NETDEV WATCHDOG: usb0 (cdc_ether): transmit queue 0 timed out",
            "NETDEV WATCHDOG: eth4 (r8152): transmit queue 0 timed out",
            "rndis_host 1-14:2.0 enxb03af61ad78a: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5010 ms",
        )
    ],
    ("usb 1-1: new high-speed USB device number 2", None, {}),
    ("python3[1]: just a message about segfault at noon", None, {}),
]


@pytest.mark.parametrize(("line", "kind", "evidence"), OTHERS)
def test_other_faults_are_recognised(
    log: Path, line: str, kind: str | None, evidence: dict[str, object]
) -> None:
    """The kernel's messages about memory, itself, processes, file systems and disks."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    write(log, f"[12345.678901] {line}")
    alerts = detector.poll()
    assert [alert.kind.value for alert in alerts] == ([kind] if kind else [])
    if alerts:
        assert evidence.items() <= alerts[0].evidence.items()
        assert line in alerts[0].evidence["line"]


def test_kills_of_several_processes_are_several_signals(log: Path) -> None:
    """They differ by pid; the same disk failing again is the same fault."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    kill = "Out of memory: Killed process {} (python3)"
    write(log, kill.format(1), kill.format(2), *["I/O error, dev sda, sector 1"] * 50)
    alerts = detector.poll()
    assert [alert.kind for alert in alerts] == [AlertKind.OOM_KILL, AlertKind.OOM_KILL, AlertKind.DISK_FAULT]
    assert alerts[-1].evidence["count"] == 50


def test_a_port_that_fails_again_is_a_new_signal(log: Path) -> None:
    """A while later; until then it is the same fault. A network fault counts when it comes again."""
    now = [1000.0]
    detector = KernelLog("m0", log, LIMITS.intervals, clock=lambda: now[0])
    found = []
    for seconds in (0, 5, 26, 5):
        now[0] += seconds
        write(log, "mlx5_core 0000:5e:00.0: device's health compromised - reached miss count")
        found += detector.poll()
    first, second = dict.fromkeys(alert.key for alert in found)
    assert [alert.key for alert in found] == [first, first, second, second]
    policy = Policy.load().classify
    assert repeated.find(in_order(found[:2], policy), policy) == []
    assert repeated.find(in_order(found, policy), policy) == [found[0]]


def test_two_ports_that_hang_are_two_signals(log: Path) -> None:
    """Each by its own name, also where the line came through syslog."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    line = "Oct 15 19:26:35 n7 kernel: NETDEV WATCHDOG: {} (igb): transmit queue 5 timed out"
    write(log, line.format("eth1"), line.format("eth2"))
    assert [alert.evidence["device"] for alert in detector.poll()] == ["eth1", "eth2"]


def test_a_bad_block_of_btrfs_is_no_broken_file_system(log: Path, tmp_path: Path) -> None:
    """Btrfs may repair it from another copy; that the file system turns read-only is a fault of its own."""
    detector = KernelLog("m0", log, LIMITS.intervals, block=tmp_path)
    write(
        log,
        "BTRFS warning (device sda2): csum failed root 257 ino 41 off 0 csum 0x3e expected csum 0x12 mirror 1",
        "BTRFS error (device sda2): bdev /dev/sda2 errs: wr 0, rd 0, flush 0, corrupt 3, gen 0",
        "BTRFS info (device sda2): read error corrected: ino 0 off 2544 (dev /dev/sda2 sector 5132)",
    )
    block = detector.poll()
    assert [(alert.kind, alert.evidence.get("recovers")) for alert in block] == [("filesystem_error", True)]
    write(log, "BTRFS: error (device sda2) in btrfs_commit_transaction:2564: errno=-5 IO failure")
    write(log, "BTRFS info (device sda2 state E): forced readonly")
    assert "recovers" not in detector.poll()[0].evidence
