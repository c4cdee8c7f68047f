"""A headless Chromium for the page tests, driven over the DevTools protocol through a pair of pipes; no other package.

with Browser(find()) as browser:
    page = browser.open("file:///...")
    page.value("document.title"), page.click("#cell"), page.key("ArrowRight")
    page.errors, page.requests
"""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

KEYS = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
    "End": 35,
    "Home": 36,
}


def find():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """The protocol's messages are JSON, each ended by a zero byte; ours go to its descriptor 3, its own come from 4."""

    def __init__(self, program, limit=60):
        self.program, self.limit = program, limit
        self.last, self.buffer, self.pages = 0, b"", {}

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self.ours_out = os.pipe()
        self.ours_in, theirs_out = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--remote-debugging-pipe",
            "--window-size=1300,1000",
            f"--user-data-dir={self.profile.name}",
            "about:blank",
        ]
        move = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["bash", "-c", move, "browser", self.program, *flags],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, EOFError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.ours_out)
        os.close(self.ours_in)
        self.profile.cleanup()
        self.log.close()

    def said(self):
        """What the browser wrote on stderr, for a failure's sake."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:]

    def _message(self, end):
        """The next message; TimeoutError after `end`."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.ours_in], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer\n" + self.said())
            data = os.read(self.ours_in, 1 << 16)
            if not data:
                raise EOFError("the browser ended\n" + self.said())
            self.buffer += data
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        page = self.pages.get(message.get("sessionId"))
        if page and "method" in message:
            page.event(message["method"], message["params"])
        return message

    def call(self, method, session=None, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.ours_out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + self.limit
        while True:
            answer = self._message(end)
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, address):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        self.pages[session] = page
        page.load(address)
        return page


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.errors, self.requests, self.loaded = [], [], False

    def event(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"].get("exception", parameters["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Page.javascriptDialogOpening":
            self.errors.append("a dialog: " + parameters["message"])
            self.call("Page.handleJavaScriptDialog", accept=True)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def load(self, address):
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(domain + ".enable")
        self.call("Page.navigate", url=address)
        end = time.monotonic() + self.browser.limit
        while not self.loaded:
            self.browser._message(end)

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def click(self, selector):
        """A press and a release of the mouse in the middle of an element, through the browser's own input."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def key(self, name):
        code = KEYS[name]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def emulate(self, **features):
        """Media features, as in emulate(prefers_color_scheme="dark")."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=listed)

    def picture(self, path):
        import base64

        with open(path, "wb") as stream:
            stream.write(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))
