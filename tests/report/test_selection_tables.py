"""`neubay analyze selection`: rank correlation, regret and the verdict's errors, by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from neubay import cli
from neubay.errors import NeubayError
from neubay.report.parts.tables import END
from neubay.report.studies import selection_tables
from neubay.report.studies.selection_tables import Checked


def document(vote: bool = True) -> dict[str, Any]:
    """Five candidates, of which four were measured; data 10, clone 12."""
    rows = [  # name, estimate, truth, gain over data, gain over clone, q
        ("a", 50.0, 40.0, 20.0, 10.0, 1.0),
        ("b", 45.0, 52.0, 10.0, 5.0, 2.0),
        ("c", 44.0, 11.0, 1.0, 1.0, 3.0),  # wrongly deployed
        ("clone", 12.0, 12.0, 1.0, 0.0, None),
        ("d", 99.0, None, 1.0, 1.0, None),
    ]
    names = ("name", "estimate", "return_mean", "gain_over_data", "gain_over_clone", "q_start")
    candidates = [
        dict(zip(names, row, strict=True)) | {"is_clone": row[0] == "clone"} for row in rows
    ]
    return {
        "data": {"name": "toy", "hash": "h", "return_mean": 10.0, "episodes": 3},
        "protocol": {"vote": vote},
        "verdict": "deploy",
        "chosen": "d",
        "candidates": candidates,
    }


def checked(vote: bool = True) -> Checked:
    (entry,) = selection_tables.condense([document(vote)])["selections"]
    return Checked("toy", entry)


def test_only_what_was_measured_is_checked() -> None:
    found = checked()
    assert len(found.candidates) == 4
    # Ranks of the estimates 4 3 2 1, of the truth 3 4 1 2: 1 - 6 * 4 / (4 * 15).
    assert found.spearman("estimate") == pytest.approx(0.6)
    assert found.spearman("q_start") == pytest.approx(-0.5)  # of three: 1 2 3 and 2 3 1
    assert found.spearman("fqe") is None


def test_regret_is_a_share_of_the_range() -> None:
    assert checked().regret(1) == pytest.approx((52 - 40) / (52 - 11))
    assert checked().regret(3) == 0


def test_among_equals_there_is_nothing_to_regret() -> None:
    found = checked()
    for each in found.candidates:
        each["return_mean"] = 7.0
    assert found.regret(1) is None and found.spearman("estimate") is None
    assert "| - |" in selection_tables.markdown({"selections": [found.entry]})


def test_every_way_has_its_regret() -> None:
    # The critic's highest is c, of 11; the clone has no critic and is never first by it.
    assert checked().regret(1, "q_start") == pytest.approx(1)
    assert checked().regret(2, "q_start") == 0  # b, the best, is its second
    assert checked().regret(1, "fqe") is None


def test_what_datasets_differ_in_counts_for_nothing_when_they_are_pooled() -> None:
    other = document()
    other["data"] |= {"name": "hopper_medium", "hash": "of other data"}
    for each in other["candidates"]:
        for name in ("estimate", "return_mean"):
            each[name] = None if each[name] is None else 1000 * each[name] + 5e4
    found = [
        Checked(entry["dataset"], entry)
        for entry in selection_tables.condense([document(), other])["selections"]
    ]
    assert [each.part for each in found] == ["tested on", "fixed on"]
    assert Checked("door_human", found[0].entry).part == "refined on"
    assert selection_tables.pooled(found, "estimate") == pytest.approx(0.6)
    assert selection_tables.pooled(found, "fqe") is None
    found[0].entry["fitted_q"] = {"gamma": 0.9, "of_data": 4.6, "data_earned": 5.4}
    for each in found[0].candidates:
        each["fqe"] = each["estimate"]
    text = selection_tables.markdown({"selections": [each.entry for each in found]})
    assert "| toy | 0.9 | 5 | 5 | 12 to 50 |" in text
    assert "| overall | fixed on | tested on | all |" in text
    assert "| policies | 4 | 4 | 8 |" in text


def test_a_study_that_is_repeated_with_more_runs_takes_the_place_of_the_first() -> None:
    first, more, other = document(), document(vote=False), document()
    more["candidates"] = [*more["candidates"], more["candidates"][0] | {"name": "e"}]
    more["candidates"][3] |= {"name": "clone of run"}  # beside another run's
    other["data"] = other["data"] | {"hash": "of other data"}
    found = selection_tables.condense([first, other, more])["selections"]
    assert [(entry["data"]["hash"], entry["vote"]) for entry in found] == [
        ("of other data", True),
        ("h", False),
    ]
    assert len(selection_tables.condense([more, first])["selections"]) == 2  # nothing is lost


def test_the_two_errors_of_the_verdict() -> None:
    found = checked()
    assert found.deployed.tolist() == [True, True, True, False]
    assert found.better.tolist() == [True, True, False, False]  # the clone has 12, c has 11
    assert not checked(vote=False).deployed.any()


def test_the_command_writes_the_tables_into_a_text(tmp_path: Path) -> None:
    source, text, out = (tmp_path / name for name in ("selection.json", "page.md", "few.json"))
    source.write_text(json.dumps(document()))
    text.write_text(f"{selection_tables.BEGIN}\n{END}\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["analyze", "selection", str(source), "--text", str(text), "--out", str(out)])
    assert not ended.value.code
    assert "1 of 3" in text.read_text() and "2 of 2" in text.read_text()
    again = selection_tables.condense([json.loads(out.read_text())])
    assert selection_tables.markdown(again) in text.read_text()
    with pytest.raises(NeubayError, match=r"not a selection\.json"):
        selection_tables.condense([{"data": {}}])


@pytest.mark.parametrize("noise", ["all", None, [1]])
def test_a_noise_that_is_no_number_is_refused(noise: object) -> None:
    damaged = document()
    damaged["protocol"]["noise"] = noise
    with pytest.raises(NeubayError, match="not a selection"):
        selection_tables.condense([damaged])
    (entry,) = selection_tables.condense([document()])["selections"]
    assert entry["noise"] == 1.0  # of before it was scaled
