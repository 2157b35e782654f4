"""Measure report pages in Chromium: length in screens, size, first paint, console messages, requests, and checks.

    python -P scripts/measure/report.py REPORT.html... [--screenshots FOLDER]

A screen is 1400 or 400 pixels wide and 900 high. The checks unfold everything. They are of accessibility: headings in
order, a name for every chart, scopes of table headers, labels of fields, text of at least 11 pixels, contrast of at
least 4.5, and no sideways scrolling.
"""

import argparse
import base64
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDTHS, HEIGHT = (1400, 400), 900
CHECKS = """(() => {
const problems = {};
for (const node of document.querySelectorAll("details")) node.open = true;
const add = (name, text) => (problems[name] ||= []).push(text);
const levels = [...document.querySelectorAll("h1,h2,h3,h4,h5,h6")].map(node => +node.tagName[1]);
levels.forEach((level, i) => { if (i && level - levels[i - 1] > 1) add("headings", `before h${level}`); });
if (levels.filter(level => level === 1).length !== 1) add("headings", "not one h1");
const isNamed = svg => svg.getAttribute("aria-labelledby")?.split(" ")
  .every(id => document.getElementById(id)?.textContent);
for (const svg of document.querySelectorAll("svg:not([aria-hidden=true])")) if (!isNamed(svg)) add("charts", "no name");
for (const th of document.querySelectorAll("th")) if (!th.scope) add("tables", th.textContent);
for (const field of document.querySelectorAll("select")) if (!field.labels.length) add("fields", field.name);
const ids = [...document.querySelectorAll("[id]")].map(node => node.id);
if (new Set(ids).size < ids.length) add("ids", "repeated");
const rgb = color => color.match(/[\\d.]+/g).map(Number);
const linear = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
const luminance = color => rgb(color).slice(0, 3).map(c => linear(c / 255))
  .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
const ground = node => {
  for (; node; node = node.parentElement) {
    const color = getComputedStyle(node).backgroundColor;
    if (rgb(color)[3] !== 0) return color;
  }
  return "rgb(255,255,255)";
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
  const isHidden = ["SCRIPT", "STYLE", "title", "desc", "OPTION"].includes(node.tagName) || !node.checkVisibility();
  if (!text || isHidden) continue;
  const style = getComputedStyle(node), chart = node.closest("svg");
  const scale = chart ? chart.getBoundingClientRect().width / chart.viewBox.baseVal.width : 1;
  const size = parseFloat(style.fontSize) * scale;
  if (size < 10.99) add("small text", `${size.toFixed(1)}: ${text.slice(0, 40)}`);
  if (node.classList.contains("inside")) continue;
  const pair = [luminance(chart ? style.fill : style.color), luminance(ground(node))].sort((a, b) => a - b);
  const contrast = (pair[1] + .05) / (pair[0] + .05);
  if (contrast < 4.5) add("contrast", `${contrast.toFixed(2)}: ${text.slice(0, 40)}`);
}
if (document.documentElement.scrollWidth > innerWidth) add("width", document.documentElement.scrollWidth);
return JSON.stringify(problems);
})()"""


class Browser:
    """A headless Chromium that is controlled over a pipe by the DevTools protocol."""

    def __init__(self, process: subprocess.Popen[bytes], reader: int, writer: int) -> None:
        self.process, self.writer, self.stream = process, writer, os.fdopen(reader, "rb")
        self.buffer, self.number, self.session, self.events = b"", 0, "", list[dict[str, Any]]()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method and return its result; keep the events that come before it."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            self.buffer += os.read(self.stream.fileno(), 1 << 20)
        text, self.buffer = self.buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, path: Path, width: int, *, scheme: str = "light", media: str = "screen") -> dict[str, Any]:
        """Load a page and return its height, first paint in ms, and numbers of console messages and requests."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next_message())
        paint = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 300)))"
        self.call("Runtime.evaluate", expression=paint, awaitPromise=True)
        found = {"height": self._evaluate("document.documentElement.scrollHeight")}
        found["paint"] = self._evaluate('performance.getEntriesByName("first-contentful-paint")[0]?.startTime') or 0.0
        methods = [event.get("method") for event in self.events]
        messages = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        found["messages"] = sum(method in messages for method in methods)
        found["requests"] = methods.count("Network.requestWillBeSent") - 1  # the page itself
        return found

    def find_problems(self) -> dict[str, list[str]]:
        """Unfold everything and return the problems by check."""
        problems: dict[str, list[str]] = json.loads(self._evaluate(CHECKS))
        return problems

    def _evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression)["result"].get("value")

    def screenshot(self, path: Path, *, full: bool = False) -> None:
        """Write what is on the screen, or the whole page, as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def start_browser(command: str = "chromium") -> Iterator[Browser]:
    """Start Chromium with file descriptors 3 and 4 as its pipe, and end it."""
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        flags = f"--headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir={profile}"
        shell = f"exec {command} {flags} --remote-debugging-pipe 3<&{to_browser[0]} 4>&{from_browser[1]}"
        process = subprocess.Popen(
            ["/bin/bash", "-c", shell], pass_fds=(to_browser[0], from_browser[1]), stderr=subprocess.DEVNULL
        )
        try:
            yield Browser(process, from_browser[0], to_browser[1])
        finally:
            process.terminate()
            process.wait(30)


def main() -> None:
    """Print a row for each page, and its problems below."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--screenshots", type=Path)
    arguments = parser.parse_args()
    print("page, KiB, screens at 1400, screens at 400, first paint ms, console messages, requests")
    with start_browser() as browser:
        for page in arguments.pages:
            measured, problems = [], {}
            for width, scheme in ((WIDTHS[0], "light"), (WIDTHS[1], "light"), (WIDTHS[0], "dark")):
                measured.append(browser.open(page, width, scheme=scheme))
                problems |= {(width, scheme, kind): texts for kind, texts in browser.find_problems().items()}
            lengths = ", ".join(f"{found['height'] / HEIGHT:.1f}" for found in measured[:2])
            paint, messages, requests = (
                max(found[key] for found in measured) for key in ("paint", "messages", "requests")
            )
            print(f"{page}, {page.stat().st_size / 1024:.0f}, {lengths}, {paint:.0f}, {messages}, {requests}")
            for (width, scheme, kind), texts in problems.items():
                print(f"  {width} {scheme}: {kind}: {len(texts)}, for example {texts[0]}")
            if arguments.screenshots:
                save_screenshots(browser, page, arguments.screenshots)


def save_screenshots(browser: Browser, page: Path, folder: Path) -> None:
    """Write the first screen at both widths, light and dark, and as printed."""
    folder.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            browser.open(page, width, scheme=scheme)
            browser.screenshot(folder / f"{page.parent.name}_{width}_{scheme}.png")
    browser.open(page, 800, media="print")
    browser.screenshot(folder / f"{page.parent.name}_print.png")


if __name__ == "__main__":
    main()
