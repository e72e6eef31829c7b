"""The pages in a real browser: nothing is asked for, nothing is complained about, all is reachable.

Skipped where there is no Chromium. Set NEUBAY_SCREENSHOTS to a folder to look at the pages.
"""

import base64
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from browser import Browser, browser, find_browser, keep
from neubay import runs
from neubay.report import page, records, reel, serve
from report_runs import make_run

CHROMIUM = find_browser()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with browser(CHROMIUM) as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The three kinds of page, as files; of the paper's tables, many and a wide one."""
    root = tmp_path_factory.mktemp("pages")
    overestimating = make_run(root / "a", score=8.0, promised=600.0)
    others = []
    for seed in range(2):
        others.append(make_run(root / f"b{seed}", seed=seed, rows=40))
        changes = {"rollout": {"zeta": 0.9}}
        others.append(make_run(root / f"z{seed}", seed=seed, score=15.0, rows=40, changes=changes))
    frames = [np.full((60, 80, 3), shade, np.uint8) for shade in range(0, 240, 12)]
    reports = {
        "one": page.one_run(
            records.read(overestimating), reel=reel.reel(frames, "Seed 0 in Hopper-v4.")
        ),
        "many": page.many_runs(records.read_all(others)),
        "paper": page.paper_tables("ablations"),
        "locomotion": page.paper_tables("locomotion"),
    }
    for name, report in reports.items():
        report.save(root / name)
    return {name: root / name / "index.html" for name in reports}


@pytest.mark.parametrize("name", ["one", "many", "paper"])
def test_pages_load_alone_and_in_peace(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    chromium.requests.clear()
    chromium.complaints.clear()
    for width in (1240, 400):
        for scheme in ("light", "dark"):
            chromium.show(width, scheme)
            chromium.open(pages[name].as_uri())
            keep(f"{name}-{width}-{scheme}.png", chromium.screenshot())
            wide = "document.documentElement.scrollWidth"
            assert chromium.evaluate(wide) <= width, "the page itself never scrolls sideways"
            dark = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (max(map(int, dark[4:-1].split(","))) < 60) == (scheme == "dark")
    assert chromium.complaints == []
    asked = {address for address in chromium.requests if not address.startswith("data:")}
    assert asked == {pages[name].as_uri()}


def test_text_stands_out_from_its_ground(chromium: Browser, pages: dict[str, Path]) -> None:
    """WCAG's ratio of 4.5 for text, in both schemes, in notices and in shaded cells too."""
    script = """(() => {
      const luminance = colour => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(v => {
          v /= 255;
          return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ground = element => {
        for (let e = element; e; e = e.parentElement) {
          const colour = getComputedStyle(e).backgroundColor;
          if (!/, 0\\)$/.test(colour)) return colour;
        }
        return 'rgb(255, 255, 255)';
      };
      const low = [];
      const texts = 'h1, h2, p, dt, dd, small, td, th, li b, li span, a, summary';
      for (const e of document.querySelectorAll(texts)) {
        const [a, b] = [luminance(getComputedStyle(e).color), luminance(ground(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) low.push([e.tagName, e.className, ratio.toFixed(2)].join(' '));
      }
      return [...new Set(low)];
    })()"""
    for name in pages:
        for scheme in ("light", "dark"):
            chromium.show(1240, scheme)
            chromium.open(pages[name].as_uri())
            assert chromium.evaluate(script) == [], (name, scheme)


def test_everything_is_reached_by_keyboard(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.show(1240, "light")
    chromium.open(pages["many"].as_uri())
    focused = "document.activeElement.tagName + ' ' + document.activeElement.className"
    chromium.press("Tab")
    assert chromium.evaluate(focused) == "A skip"
    assert chromium.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    reached = set()
    for _ in range(60):
        chromium.press("Tab")
        kind = chromium.evaluate(focused).strip()
        reached.add(kind)
        if kind == "SUMMARY":
            break
    assert {"A", "DIV table", "FIGURE wide", "SUMMARY"} <= reached
    is_open = "document.activeElement.parentElement.open"
    assert chromium.evaluate(is_open) is False
    chromium.press("Enter")
    assert chromium.evaluate(is_open) is True
    keep("many-opened.png", chromium.screenshot())


def test_the_page_prints(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["one"].as_uri())
    printed = base64.b64decode(chromium.call("Page.printToPDF")["data"])
    keep("one.pdf", printed)
    assert printed.startswith(b"%PDF") and 1 <= printed.count(b"/Type /Page\n") <= 4


@pytest.mark.parametrize("name", ["many", "paper", "locomotion"])
def test_no_column_is_cut_off_in_print(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    chromium.show(1040, "light")  # A4 on its side, within the margins
    chromium.call("Emulation.setEmulatedMedia", media="print")
    try:
        chromium.open(pages[name].as_uri())
        script = "[...document.querySelectorAll('.table')].map(t => [t.scrollWidth, t.clientWidth])"
        widths = chromium.evaluate(script)
    finally:
        chromium.call("Emulation.setEmulatedMedia", media="")
    keep(f"{name}.pdf", base64.b64decode(chromium.call("Page.printToPDF")["data"]))
    assert widths and all(needed <= given for needed, given in widths), widths


def test_the_live_page_refreshes_itself(chromium: Browser, tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", finished=False, rows=20)
    chromium.requests.clear()
    chromium.complaints.clear()
    with (
        runs.locked(directory),
        serve.server(directory, host="127.0.0.1", port=0, refresh=1) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium.open(server.address)
        seen = chromium.loads
        with (directory / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "train", "step": 12000, "q_data": 1.0}\n')
        chromium.wait_for_loads(seen + 1)
        assert "running, 75%" in chromium.evaluate("document.body.innerText")
        chromium.open("about:blank")
        server.shutdown()
    asked = {
        address for address in chromium.requests if not address.startswith(("data:", "about:"))
    }
    assert asked == {server.address} and chromium.complaints == []
