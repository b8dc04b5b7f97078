"""A page in the browser, driven by DevTools."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection

SECONDS_MAX = 60.0
CONDITION_SECONDS_MAX = 30.0

KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Tab": ("Tab", 9, ""),
    "Space": ("Space", 32, " "),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
}
"""Keys that are not letters: code, number and text."""

UNTIL = """
    new Promise((done, fail) => {
        const deadline = performance.now() + MILLISECONDS;
        const look = () => {
            let found;
            try { found = (EXPRESSION); } catch { found = undefined; }
            if (found) done(found);
            else if (performance.now() > deadline)
                fail(new Error("not so: " + document.body.innerText.slice(0, 2000)));
            else setTimeout(look, 16);
        };
        look();
    })
"""


class Page:
    """A page in the browser."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._loads = 0
        self.requests: list[str] = []
        """Everything that the page asked anybody for."""
        self.complaints: list[str] = []
        """What went wrong in it: errors, and what its policy refused. Not what the network did."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.open(url)

    def open(self, url: str) -> None:
        """Go to another address, and return once it is loaded."""
        self._until_loaded("Page.navigate", url=url)

    def reload(self) -> None:
        """Reload the page."""
        self._until_loaded("Page.reload")

    def run(self, script: str) -> Any:
        """Run a script in the page, and return its result, awaited if it is a promise."""
        found = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""
        script = UNTIL.replace("EXPRESSION", expression)
        return self.run(script.replace("MILLISECONDS", str(int(CONDITION_SECONDS_MAX * 1000))))

    def until_shown(self, *texts: str) -> None:
        """Wait until the page shows all these texts."""
        self.until(f"{json.dumps(texts)}.every(text => document.body.innerText.includes(text))")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other: letters, or names in `KEYS`."""
        for key in keys:
            code, number, text = KEYS.get(key, ("", 0, key))
            pressed = " " if key == "Space" else key
            event = {"key": pressed, "code": code, "windowsVirtualKeyCode": number}
            self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
            self._call("Input.dispatchKeyEvent", type="keyUp", **event)

    def write(self, text: str) -> None:
        """Write into the field that has the focus."""
        self._call("Input.insertText", text=text)

    def look(
        self, *, width: int = 1440, height: int = 900, scheme: str = "light", is_phone: bool = False
    ) -> None:
        """Emulate a screen and a color scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def before_scripts(self, script: str) -> None:
        """Run a script in every page that is opened from now on, before its own scripts."""
        self._call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def screenshot(self, path: Path) -> None:
        """Write a screenshot to a file."""
        found = self._call("Page.captureScreenshot", format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """Close the page and its connections."""
        self._call("Page.close")

    def _until_loaded(self, method: str, **parameters: Any) -> None:
        self._loads = 0
        self._call(method, **parameters)
        while not self._loads:
            self._next()

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, found["error"]
                return found["result"]

    def _next(self) -> Any:
        found = json.loads(self._connection.recv(timeout=SECONDS_MAX))
        if "method" in found:
            self._note(found["method"], found["params"])
        return found

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loads += 1
        elif event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"]))
        elif event == "Log.entryAdded":
            entry = told["entry"]
            if entry["source"] != "network" and entry["level"] in ("error", "warning"):
                self.complaints.append(entry["text"])
