"""One tab of a headless Chromium, driven over its DevTools protocol: clicks, keys, requests, errors, screenshots."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.e2e.browser import Chromium

DEADLINE_S = 90.0
PHONE = (360, 780)
DESKTOP = (1280, 900)


class Tab:
    """A tab. ``requests`` are the addresses that it asked for, ``errors`` what went wrong in the page's scripts.

    ``context`` is the browser context that it is in, as arguments of a command.
    """

    def __init__(self, socket: ClientConnection, context: dict[str, Any]) -> None:
        self._socket, self.context = socket, context
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
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

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
        deadline = time.monotonic() + DEADLINE_S
        # A busy host refuses connections for a moment to what listens.
        while "CONNECTION_REFUSED" in (await self.call("Page.navigate", url=url)).get("errorText", ""):
            assert time.monotonic() < deadline, f"{url} refuses connections"
            await asyncio.sleep(0.2)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def sees(self, text: str) -> None:
        """Wait until the page shows ``text``."""
        await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def click(self, selector: str, text: str = "") -> None:
        """Click the first element that matches and contains ``text``.

        It is found and clicked in one script: between two the page may make its view again, as when colours change.
        """
        every = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found = f"{every}.find(e => e.textContent.includes({json.dumps(text)}))"
        await self.until(f"(e => !!e && (e.click(), true))({found})")

    async def fill(self, name: str, value: str) -> None:
        """Type into the field of a form."""
        field = f"document.querySelector('[name={name}]')"
        await self.until(f"(e => !!e && (e.value = {json.dumps(value)}, true))({field})")

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
            content = json.loads(message)
            if "id" in content:
                answer = self._answers.pop(content["id"])
                if "error" in content:
                    answer.set_exception(AssertionError(content["error"]))
                else:
                    answer.set_result(content["result"])
            elif content["method"] == "Network.requestWillBeSent":
                self.requests.append(content["params"]["request"]["url"])
            elif content["method"] == "Runtime.exceptionThrown":
                details = content["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            elif content["method"] == "Log.entryAdded" and content["params"]["entry"]["source"] == "security":
                self.errors.append(content["params"]["entry"]["text"])


@asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """A tab that shares nothing with those of other tests: no cookie, no storage, no cache."""
    chromium = Chromium.running()
    # The library's own limits are those of a network; here a busy host is waited for.
    patient: dict[str, Any] = {"max_size": None, "open_timeout": DEADLINE_S, "ping_interval": None}
    async with connect(chromium.control, **patient) as socket:
        control = Tab(socket, {})
        made = await control.call("Target.createBrowserContext", disposeOnDetach=True)
        target = await control.call("Target.createTarget", url="about:blank", **made)
        async with connect(f"{chromium.address}/devtools/page/{target['targetId']}", **patient) as page:
            tab = Tab(page, made)
            for domain in ("Page", "Runtime", "Network", "Log"):
                await tab.call(f"{domain}.enable")
            await tab.size(*DESKTOP)
            yield tab
            await tab.close()
        await control.call("Target.disposeBrowserContext", **made)
        await control.close()
