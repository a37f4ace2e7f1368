"""``python -m benchmarks.page``: how long the status page takes for a job of 10,240 ranks, in a headless Chromium."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from holdfast.testing.gateway_kit import JOB, Kit
from tests.page.served import log_in, served
from tests.page.tab import Tab, browser
from tests.page.world import big_job

MACHINES, RANKS, TP, PP = 1280, 8, 8, 16
RUNS = 5
TARGET_MS = 1000.0
# From the click to the frame after the heat map was drawn: fetch, parse, both maps.
CLICK = """new Promise(done => {
  performance.clearMeasures();
  const begun = performance.now();
  location.hash = '#/jobs/%s';
  const look = () => {
    const drawn = performance.getEntriesByName('holdfast ranks drawn');
    if (!drawn.length) return requestAnimationFrame(look);
    requestAnimationFrame(() => done([performance.now() - begun, drawn[0].duration]));
  };
  look();
})"""


async def measure(tab: Tab) -> tuple[float, float]:
    """Milliseconds from the click until the ranks are seen, and those of drawing alone."""
    await tab.run("location.hash = '#/incidents'")
    await tab.sees("Incidents")
    seen, drawing = await tab.run(CLICK % JOB)
    await tab.until("document.querySelectorAll('.part.heat canvas').length === 1")
    return float(seen), float(drawing)


async def main() -> None:
    """Print the medians."""
    with tempfile.TemporaryDirectory() as folder:
        kit = Kit(Path(folder))
        await big_job(kit, MACHINES, RANKS, TP, PP)
        begun = time.perf_counter()
        body = (await kit.http.get(f"/v1/page/jobs/{JOB}/ranks")).content
        made_ms = 1000 * (time.perf_counter() - begun)
        async with served(kit) as address, browser(Path(folder)) as tab:
            await log_in(tab, address)
            runs = [await measure(tab) for _ in range(RUNS)]
        await kit.close()
    seen, drawing = (statistics.median(column) for column in zip(*runs, strict=True))
    print(
        f"{MACHINES * RANKS:,} ranks, TP {TP} x PP {PP} x DP {MACHINES * RANKS // TP // PP}, {RUNS} runs, medians"
    )
    print(f"answer made by the gateway   {made_ms:7.0f} ms, {len(body) / 1e6:.2f} MB before gzip")
    print(f"click until ranks are seen   {seen:7.0f} ms  (target {TARGET_MS:.0f} ms)")
    print(f"of it drawing both maps      {drawing:7.0f} ms")


if __name__ == "__main__":
    asyncio.run(main())
