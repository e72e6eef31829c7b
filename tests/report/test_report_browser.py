"""The pages in a real browser: nothing is asked for, nothing is complained about, all is reachable.

Skipped where there is no Chromium. Set NEUBAY_SCREENSHOTS to a folder to look at the pages.
"""

import base64
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from helpers.browser import Browser, browser, find_browser, keep
from helpers.report_runs import make_run
from neubay.report.runs import page, records, reel, serve
from neubay.runs.locks import locked

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


@pytest.mark.slow
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


def test_paper_is_light(chromium: Browser, pages: dict[str, Path]) -> None:
    """Who reads in the dark prints in light colours, every one of them."""
    script = """(() => {
      const found = {};
      const style = getComputedStyle(document.documentElement);
      for (const rule of document.styleSheets[0].cssRules[0].style)
        if (rule.startsWith('--')) found[rule] = style.getPropertyValue(rule).trim();
      const texts = [...document.querySelectorAll('h1, p, td, th, li, dd, figcaption, svg text')];
      const colours = texts.map(e => getComputedStyle(e)).map(own => own.color + own.fill);
      return [found, style.colorScheme, colours];
    })()"""
    seen = {}
    try:
        for name in ("one", "many"):
            for scheme in ("light", "dark"):
                features = [{"name": "prefers-color-scheme", "value": scheme}]
                chromium.call("Emulation.setEmulatedMedia", media="print", features=features)
                chromium.open(pages[name].as_uri())
                seen[name, scheme] = chromium.evaluate(script)
                keep(f"{name}-print-{scheme}.png", chromium.screenshot())
    finally:
        chromium.call("Emulation.setEmulatedMedia", media="", features=[])
    for name in ("one", "many"):
        assert seen[name, "light"] == seen[name, "dark"]
    variables, scheme, _ = seen["one", "dark"]
    assert scheme == "light" and {"--mark", "--warn-wash", "--worse3", "--sky"} <= set(variables)


@contextmanager
def live_page(chromium: Browser, directory: Path) -> Iterator[str]:
    """The page of a run that is going on, opened, renewing itself every second."""
    chromium.requests.clear()
    chromium.complaints.clear()
    with (
        locked(directory),
        serve.server(directory, host="127.0.0.1", port=0, refresh=1) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium.open(server.address)
        yield server.address
        chromium.open("about:blank")
        server.shutdown()


def wait_for(chromium: Browser, words: str) -> None:
    end = time.monotonic() + 150
    while words not in chromium.evaluate("document.body.innerText"):
        assert time.monotonic() < end, f"'{words}' did not appear"
        time.sleep(0.2)


def progress(directory: Path, step: int) -> None:
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(f'{{"kind": "train", "step": {step}, "q_data": 1.0}}\n')


@pytest.mark.slow
def test_the_live_page_renews_itself_under_its_reader(chromium: Browser, tmp_path: Path) -> None:
    """What was opened stays open, and neither the place on the page nor the focus is lost."""
    directory = make_run(tmp_path / "run", finished=False, rows=20)
    chromium.show(1240, "light")
    with live_page(chromium, directory) as address:
        loads = chromium.loads
        chromium.evaluate("""(() => {
          const [first, second] = document.querySelectorAll('details');
          first.open = true;
          second.querySelector('summary').focus();
          scrollTo({top: 700, behavior: 'instant'});
        })()""")
        state = """(() => {
          const all = [...document.querySelectorAll('details')];
          const at = document.activeElement;
          return [all.map(e => e.open), at.tagName, all.indexOf(at.parentElement), scrollY];
        })()"""
        before = chromium.evaluate(state)
        assert before[0][:2] == [True, False] and before[1:] == ["SUMMARY", 1, 700]
        progress(directory, 12_000)
        wait_for(chromium, "running, 75%")
        assert chromium.evaluate(state) == before
        # At its end the page has other parts, and renews itself no more.
        done = make_run(tmp_path / "done", rows=20)
        shutil.copy(done / "summary.json", directory / "summary.json")
        wait_for(chromium, "What the posterior expects")
        after = chromium.evaluate(state)
        assert after[0][:3] == [True, False, False] and after[1:3] == before[1:3]
        assert abs(after[3] - before[3]) < 200
        asked_for = len(chromium.requests)
        time.sleep(1.5)
        chromium.evaluate("0")
        assert len(chromium.requests) == asked_for
        assert chromium.loads == loads, "the page was never loaded again"
    asked = {one for one in chromium.requests if not one.startswith(("data:", "about:"))}
    assert asked == {address} and chromium.complaints == []


@pytest.mark.slow
def test_the_live_page_is_loaded_again_without_scripts(chromium: Browser, tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", finished=False, rows=20)
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        with live_page(chromium, directory):
            seen = chromium.loads
            progress(directory, 12_000)
            chromium.wait_for_loads(seen + 1)
            wait_for(chromium, "running, 75%")
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    assert chromium.complaints == []
