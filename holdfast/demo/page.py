"""``report.html``: the report for people, one self-contained file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

from holdfast.demo import chart
from holdfast.demo.report import DemoReport, IncidentLine

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast demo: $verdict</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5b6b7b; --line: #d6dde4; --back: #fff; --card: #f5f7f9;
  --good: #1a7f4b; --bad: #c0392b; --step: #2563a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9aa9b8; --line: #36424e; --back: #14191f;
  --card: #1d242c; --good: #4cc38a; --bad: #ff7b6b; --step: #6cb0f5; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 1080px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .8rem; margin: 1.2rem 0; }
.card { background: var(--card); border-radius: 8px; padding: .7rem 1rem; }
.card b { display: block; font-size: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .92em; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { white-space: nowrap; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
code { font-size: .9em; } li { margin: .2rem 0; }
</style></head><body>
<h1>Holdfast demo: <span class="$tone">$verdict</span></h1>
<p class="soft">Job $job, compared with $reference (no faults). Prefect UI: <code>$prefect</code></p>
$problems
<div class="cards">$cards</div>
<h2>Steps over time</h2>
<p class="soft">The line is the job's last completed step; each band reaches from a fault to the first new step.</p>
$timeline
<h2>Incidents</h2>
<p class="soft">Times count from the injection (code-bug: from the shipped update; its error comes some steps later),
the first task's from the accepted alert.</p>
<div class="wide">$incidents</div>
<h2>Where the time went</h2>
<p class="soft">Seconds from the fault (a planned change: from its alert) to the first new step.</p>
$bars<div class="wide">$phases</div>
<h2>Lost time of the whole job</h2>
<p class="soft">With the productive time it adds up to the wall-clock time; overlaps count once.</p>
<div class="wide">$lost</div>
<h2>What the playbooks did</h2>$actions
</body></html>
""")


def render(report: DemoReport) -> str:
    """Return the whole page."""
    return _PAGE.substitute(
        verdict="everything recovered, weights identical" if report.ok else "failed",
        tone="good" if report.ok else "bad",
        job=escape(report.job),
        reference=escape(report.reference_job),
        prefect=escape(report.prefect_url),
        problems="".join(f'<p class="bad">{escape(problem)}</p>' for problem in report.problems),
        cards=_cards(report),
        timeline=chart.timeline(report),
        incidents=_incidents(report),
        bars=chart.bars(report.incidents),
        phases=_phases(report.incidents),
        lost=_lost(report),
        actions="".join(_actions(line) for line in report.incidents),
    )


def _cards(report: DemoReport) -> str:
    equal = '<b class="good">identical</b>' if report.bitwise_equal else '<b class="bad">not shown equal</b>'
    cards = (
        f"{equal}final weights, bit by bit",
        f"<b>{100 * report.ettr:.1f} %</b>ETTR (productive / wall-clock time)",
        f"<b>{report.steps_total}</b>steps",
        f"<b>{report.steps_recomputed}</b>steps done again",
        f"<b>{len(report.incidents)}</b>incidents",
        f"<b>{report.wall_s:.0f} s</b>from first to last step",
    )
    return "".join(f'<div class="card">{card}</div>' for card in cards)


def _incidents(report: DemoReport) -> str:
    head = ("Fault", "Incident", "Machine", "n:Detected", "n:First task", "n:Recovered", "State", "Flow run")
    rows = [
        (
            line.fault or "planned change",
            f"{line.incident_class} ({line.id})",
            line.machine or "",
            f"n:{seconds(line.detected_s)}",
            f"n:{seconds(line.first_task_s)}",
            f"n:{seconds(line.recovered_s)}",
            line.state,
            line.flow_run_id or "",
        )
        for line in report.incidents
    ]
    return table(head, rows)


def _phases(lines: tuple[IncidentLine, ...]) -> str:
    names = chart.phase_names(lines)
    rows = [
        (line.fault or line.incident_class, *(f"n:{seconds(line.phases.get(name))}" for name in names))
        for line in lines
    ]
    return table(("Incident", *(f"n:{name}" for name in names)), rows)


def _lost(report: DemoReport) -> str:
    phases = [
        (name.replace("_", " "), f"n:{seconds(value)}") for name, value in report.lost_by_phase_s.items()
    ]
    classes = [
        (name or "no incident", f"n:{seconds(value)}") for name, value in report.lost_by_class_s.items()
    ]
    return table(("Phase", "n:Lost"), phases) + table(("Incident class", "n:Lost"), classes)


def _actions(line: IncidentLine) -> str:
    rows = [
        (f"n:+{action.at_s:.2f} s", action.key, action.state, f"n:{seconds(action.seconds)}")
        for action in line.actions
    ]
    title = escape(f"{line.id}: {line.incident_class}" + (f" after {line.fault}" if line.fault else ""))
    summary = f"<p>{escape(line.summary)}</p>" if line.summary else ""
    return f"<details><summary>{title}</summary>{summary}{table(('n:At', 'Action', 'State', 'n:Took'), rows)}</details>"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return an HTML table; a cell that begins with ``n:`` is a number and aligned right."""

    def cell(tag: str, text: str) -> str:
        mark = ' class="n"' if text.startswith("n:") else ""
        return f"<{tag}{mark}>{escape(text.removeprefix('n:'))}</{tag}>"

    lines = ["".join(cell("td", text) for text in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><tr>{''.join(cell('th', text) for text in head)}</tr>{body}</table>"


def seconds(value: float | None) -> str:
    """Format seconds as ``1.23 s``, or a dash."""
    return "–" if value is None else f"{value:.2f} s"
