"""A short form of `python tests/fuzz.py`: damaged input is used or refused, never a traceback."""

import pytest

from fuzz import KINDS, fuzz


@pytest.mark.slow
def test_damaged_input_is_used_or_refused_with_a_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path_factory.mktemp("cache")))
    found, tried, _ = fuzz(first=0, count=300)
    assert not found, "\n".join(f"{one.number} ({one.kind}): {one.trace}" for one in found)
    assert {each.split(":")[0] for each in tried} == set(KINDS), "every kind of file is tried"
