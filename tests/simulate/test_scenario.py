"""The data of a simulation: packaged, changed by a file, refused when wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.simulate.replicate import variants_of, with_and_without_processes
from holdfast.simulate.scenario import Scenario, Strategy, Variant, at_size
from tests.simulate.make import DEFAULT


def test_the_packaged_mix_is_the_published_one() -> None:
    """ByteRobust table 1, and the three root-cause splits of table 2."""
    counts = {name: row.count for name, row in DEFAULT.symptoms.items()}
    assert sum(counts.values()) == 55_365
    assert (counts["cuda_error"], counts["job_hang"], counts["code_or_data_adjustment"]) == (
        19_968,
        5_506,
        9_582,
    )
    assert DEFAULT.symptoms["job_hang"].causes == {"machine": 21, "code": 5}
    assert DEFAULT.symptoms["cuda_error"].causes == {"machine": 21, "code": 41}
    assert DEFAULT.symptoms["nan_value"].causes == {"machine": 3, "code": 1}


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    """Also inside sections."""
    path = tmp_path / "mine.yaml"
    path.write_text("machines: 128\ncosts: {human_s: 60}\n")
    found = Scenario.load(path)
    assert (found.machines, found.costs.human_s) == (128, 60)
    assert found.costs.replay_s == DEFAULT.costs.replay_s
    assert found.symptoms == DEFAULT.symptoms
    path.write_text("symptoms: {job_hang: {causes: {transient: 1}}}\n")
    assert Scenario.load(path).symptoms["job_hang"].causes == {"transient": 1}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("machines: none\n", ["line 1", "machines = 'none'"]),
        ("costs:\n  humans: 3\n", ["line 2", "costs.humans is not a known key", "human_s"]),
        (
            "variants:\n  - {strategy: magic}\n",
            ["line 2", "strategy = 'magic'", "'requeue', 'reschedule', 'pool' or 'unlimited'"],
        ),
        ("machines: 3\n", ["tp x pp = 64 does not divide the 24 ranks"]),
        ("symptoms: {job_hang: {causes: {machine: 0}}}\n", ["causes: expected parts"]),
        ("costs: {restart_s: {}}\n", ["restart_s: expected at least one number of machines"]),
        ("costs: {kept_s: {8: -1}}\n", ["kept_s: expected at least one number of machines"]),
        (
            "variants:\n  - {keep_processes: true, checkpoint_s: 60}\n",
            ["keep_processes: expected a strategy other than requeue"],
        ),
        ("costs: {again_s: {machine: 0}}\n", ["again_s.machine: expected seconds above 0"]),
        ("- 1\n", ["expected keys"]),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, parts: list[str]) -> None:
    """With file, line and what is allowed."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Scenario.load(path)
    message = str(caught.value)
    assert message.startswith("scenario file")
    for part in parts:
        assert part in message


def test_tables_by_size_are_read_between_their_entries() -> None:
    """Flat beyond them, straight over the logarithm between."""
    table = {128: 46.0, 256: 51.0, 1024: 65.0}
    assert [at_size(table, n) for n in (1, 128, 256, 512, 1024, 5000)] == [46, 46, 51, 58, 65, 65]


def test_variants_from_the_command_line() -> None:
    """Every strategy with every interval; what is written wrongly is named."""
    found = variants_of(["requeue", "pool:4"], ["every-step", "30m"], Variant(replay=False))
    assert [(v.strategy, v.pool, v.checkpoint_s) for v in found] == [
        (Strategy.REQUEUE, None, None),
        (Strategy.REQUEUE, None, 1800.0),
        (Strategy.POOL, 4, None),
        (Strategy.POOL, 4, 1800.0),
    ]
    assert found[-1].title == "pool of 4, checkpoint every 30 min, no replay"
    pool, kept = with_and_without_processes(variants_of(["pool"], ["every-step"], Variant()))
    assert (pool.keep_processes, kept.keep_processes) == (False, True)
    assert kept.title == "pool, checkpoint every step, processes kept"
    for each in (
        variants_of(["requeue"], ["every-step"], Variant()),
        variants_of(["pool"], ["30m"], Variant()),
    ):
        with pytest.raises(SettingsError, match=r"--keep-processes with .*: expected a strategy other"):
            with_and_without_processes(each)
    for strategy in ("magic", "pool:x", "requeue:3"):
        with pytest.raises(SettingsError, match=strategy):
            variants_of([strategy], ["30m"], Variant())
    for checkpoint in ("30", "m", "-3m", "often"):
        with pytest.raises(SettingsError, match=checkpoint):
            variants_of(["pool"], [checkpoint], Variant())
