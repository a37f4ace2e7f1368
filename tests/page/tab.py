"""One tab of a headless Chromium, driven over its DevTools protocol: clicks, keys, requests, errors, screenshots."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.e2e.browser import FLAGS

DEADLINE_S = 30.0
PHONE = (360, 780)
DESKTOP = (1280, 900)


class Tab:
    """A tab. ``requests`` are the addresses that it asked for, ``errors`` what went wrong in the page's scripts."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, **parameters: Any) -> Any:
        """One DevTools command."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        return await asyncio.wait_for(answer, DEADLINE_S)

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        told = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            if value := await self.run(condition):
                return value
            if time.monotonic() > deadline:
                text = await self.run("document.body.innerText")
                raise AssertionError(f"not within {DEADLINE_S} s: {condition}\n{self.errors}\n{text}")
            await asyncio.sleep(0.02)

    async def open(self, url: str) -> None:
        """Go to an address and wait until its document is there."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def sees(self, text: str) -> None:
        """Wait until the page shows ``text``."""
        await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def click(self, selector: str, text: str = "") -> None:
        """Click the first element that matches and contains ``text``."""
        every = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found = f"{every}.find(e => e.textContent.includes({json.dumps(text)}))"
        await self.until(f"!!{found}")
        await self.run(f"{found}.click()")

    async def fill(self, name: str, value: str) -> None:
        """Type into the field of a form."""
        await self.until(f"!!document.querySelector('[name={name}]')")
        await self.run(f"document.querySelector('[name={name}]').value = {json.dumps(value)}")

    async def key(self, key: str) -> None:
        """Press a key."""
        text = {"Enter": "\r", " ": " "}.get(key)
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    async def size(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        """How large the window is, and the person's choice of colours."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def shot(self, path: Path, *, whole: bool = False) -> Path:
        """Save what it looks like; ``whole``: the page to its end."""
        await self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    async def close(self) -> None:
        """Stop listening."""
        self._reader.cancel()
        await self._socket.close()

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message)
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if "error" in told:
                    answer.set_exception(AssertionError(told["error"]))
                else:
                    answer.set_result(told["result"])
            elif told["method"] == "Network.requestWillBeSent":
                self.requests.append(told["params"]["request"]["url"])
            elif told["method"] == "Runtime.exceptionThrown":
                details = told["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["source"] == "security":
                self.errors.append(told["params"]["entry"]["text"])


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    """A browser with a profile of its own and one tab."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("chromium is not installed (Debian and Ubuntu: apt-get install chromium)")
    profile = folder / "profile"
    command = [found, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=nothing, stderr=nothing)
    try:
        address = await _page_of(profile / "DevToolsActivePort")
        async with connect(address, max_size=None) as socket:
            tab = Tab(socket)
            for domain in ("Page", "Runtime", "Network", "Log"):
                await tab.call(f"{domain}.enable")
            await tab.size(*DESKTOP)
            yield tab
            await tab.close()
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _page_of(announced: Path) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if announced.exists() and (lines := announced.read_text().splitlines()):
            async with httpx.AsyncClient(trust_env=False) as client:
                targets = (await client.get(f"http://127.0.0.1:{lines[0]}/json/list")).json()
            for target in targets:
                if target["type"] == "page":
                    return str(target["webSocketDebuggerUrl"])
        await asyncio.sleep(0.02)
    raise AssertionError(f"chromium did not start within {DEADLINE_S} s")
