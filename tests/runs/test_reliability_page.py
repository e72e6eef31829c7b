"""docs/reliability.md lists the faults that are tried."""

import re

from helpers.faults import TESTS


def test_the_page_lists_these_faults() -> None:
    page = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")
    table = page.split("<!-- faults -->")[1].split("<!-- end of faults -->")[0]
    listed = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")}
    tried = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r'^@pytest\.mark\.faults\("(.*)"\)$', path.read_text(), re.M)
    }
    assert tried <= listed, f"missing: {tried - listed}; write the page as its head says"
    assert listed - tried == {"fault"}, f"no longer tried: {listed - tried}"
