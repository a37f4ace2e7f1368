"""``python -m benchmarks``: run all benchmarks, print the table, keep the results. Status 1: a target was missed."""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial

from benchmarks import (
    bench_alert_to_task,
    bench_data,
    bench_decisions,
    bench_detect,
    bench_elastic,
    bench_gpu,
    bench_hang,
    bench_kept,
    bench_kill_loop,
    bench_kill_rank,
    bench_load,
    bench_machine_lost,
    bench_saves,
    bench_scale,
    bench_session,
    bench_tiers,
    results,
    table,
)
from benchmarks.site import Site, site
from benchmarks.table import Row

BENCHMARKS: dict[str, Callable[[Site, int], list[Row]]] = {
    "session": bench_session.run,
    "saves": bench_saves.run,
    "tiers": bench_tiers.run,
    "load": bench_load.run,
    "alert": bench_alert_to_task.run,
    "kill-rank": bench_kill_rank.run,
    "machine-lost": bench_machine_lost.run,
    "elastic": bench_elastic.run,
    "kept": bench_kept.run,
    "hang": bench_hang.run,
    "detect": bench_detect.run,
    "decisions": bench_decisions.run,
}
LONG: dict[str, Callable[[Site, int], list[Row]]] = {"kill-loop": bench_kill_loop.run}
"""Only when asked for: half an hour for each launcher."""
ALONE: dict[str, Callable[[int], list[Row]]] = {
    "scale": bench_scale.run,
    "scale-team": bench_scale.run_team,
    "data": bench_data.run,
}
ON_GPU: dict[str, Callable[[int], list[Row]]] = {"gpu": bench_gpu.run}
"""Only when asked for: on a machine with a GPU."""
"""With a site of their own, or without any."""


def main() -> int:
    """Run what was asked for."""
    args = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    where = results.host()
    if where["load_before"] > 0.5:
        print(
            f"warning: load average {where['load_before']:.1f}: other work disturbs the numbers", flush=True
        )
    rows: list[Row] = []
    errors: list[str] = []

    def measure(name: str, work: Callable[[], list[Row]]) -> None:
        print(f"{name}:", flush=True)
        try:
            found = work()
            rows.extend(found)
            if args.write_docs:
                results.write_docs(name, found, args.n, where)
        except Exception as error:
            # The others are still worth having; the run as a whole fails.
            traceback.print_exc()
            errors.append(f"{name}: {type(error).__name__}: {error}")

    asked = args.only or [*BENCHMARKS, *ALONE]
    if together := [name for name in asked if name in BENCHMARKS | LONG]:
        with site(keep=args.keep) as on:
            for name in together:
                measure(name, partial((BENCHMARKS | LONG)[name], on, args.n))
    for name in [name for name in asked if name in ALONE | ON_GPU]:
        measure(name, partial((ALONE | ON_GPU)[name], args.n))
    path = results.write(rows, args.n, where, errors)
    print(f"\n{table.plain(rows)}\n\nresults: {path}")
    for failure in errors:
        print(f"not measured: {failure}", file=sys.stderr)
    return int(bool(errors) or any(row.verdict != "pass" for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("-n", type=int, default=10, help="runs of each (default 10)")
    parser.add_argument(
        "--only",
        action="append",
        choices=[*BENCHMARKS, *LONG, *ALONE, *ON_GPU],
        help="this one; may be repeated",
    )
    parser.add_argument("--write-docs", action="store_true", help="replace the tables in docs/benchmarks.md")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
