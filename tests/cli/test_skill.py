"""A run that is no better than always saying the same says so in its last line, everywhere; one that is, does not."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from programs import program

hospital = program("examples/hospital_table.py")


TABLE = "--dataset visits.csv --schema known.toml --test others.csv --records 1000"
BRIEFLY = "--delta 1e-4 --epsilon 1 --steps 4 --batch-size 100 --model mlp:4"


@pytest.fixture
def table(cwd: Path) -> None:
    hospital.write(cwd, 1000)


def last(text: str) -> str:
    return text.splitlines()[-1]


@pytest.mark.usefixtures("table")
def test_without_skill(cli: Any) -> None:
    """Barely trained under much noise, on a table whose outcome about one in six has."""
    done = cli(f"train --dense {TABLE} {BRIEFLY} --lr 0.01 --out r")
    skill = json.loads(Path("r/result.json").read_text())["skill"]
    labels = [line.rsplit(",", 1)[1] for line in Path("others.csv").read_text().splitlines()[1:]]
    share = labels.count("no") / len(labels)
    assert (skill["majority"], skill["majority_accuracy"], skill["records"]) == ("no", share, len(labels))
    always = f'is no better than always saying "no" ({100 * share:.2f} % of test records)'
    assert skill["verdict"].startswith("Accuracy ")
    assert always in skill["verdict"]
    assert last(done.out) == skill["verdict"]
    assert last(cli("evaluate r --dataset visits.csv --test others.csv").out) == skill["verdict"]
    done = cli("report r -o r.html")
    found = last(done.out)
    assert found.startswith(
        f"By its criteria this should not go out: a{skill['verdict'][1:]}; its chances are not right: "
    )
    assert found.replace('"', "&#34;") in Path("r.html").read_text()
    assert (
        f"<dt>mean chance over share</dt><dd>{skill['chance_over_share']['value']:.2f}<" in Path("r.html").read_text()
    )
    body = cli("report r -o other.html --json").json
    assert (body["verdict"], body["decision"]) == (skill["verdict"], found)
    assert cli("report r --card -o card.md").code == 0
    assert "no better than always saying" in Path("card.md").read_text()
    assert cli("privacy check card.md --json").json["ok"]


@pytest.mark.usefixtures("table")
def test_nothing_of_it_is_computed_where_accuracy_is_paid_for(cli: Any) -> None:
    """A test split is there, and is left alone; the records themselves are counted, and no more."""
    assert cli(f"train --dense {TABLE} {BRIEFLY} --eval-private 0.5 --out r").code == 0
    result = json.loads(Path("r/result.json").read_text())
    assert result["accuracy"] is not None
    assert result["skill"] is None
    assert cli("report r -o r.html").code == 0
    assert "AUC" not in Path("r.html").read_text()


@pytest.mark.usefixtures("table")
def test_skill_of_subgroups(cli: Any, refused: Any) -> None:
    """Each as if there were no other records; in the answer, at the terminal and on the page."""
    lasting = BRIEFLY.replace("--epsilon 1", "--noise-multiplier 0.5")
    body = cli(f"train --dense {TABLE} {lasting} --by sex --out r --json").json
    groups = {group["name"]: group for group in body["skill"]["groups"]}
    others = pd.read_csv("others.csv")
    assert list(groups) == ["sex f", "sex m", "sex empty"]
    assert sum(group["records"] for group in groups.values()) == len(others)
    women = others[others["sex"] == "f"]
    women.to_csv("women.csv", index=False)
    alone = cli("evaluate r --input women.csv --json").json["skill"]
    for name in ("records", "accuracy", "majority_accuracy", "auc"):
        assert groups["sex f"][name] == alone[name]
    done = cli("evaluate r --dataset visits.csv --test others.csv --by age")
    assert len(re.findall(r"age (up to \d+|\d+ to \d+|from \d+)", done.out)) == 4
    assert cli("report r -o r.html").code == 0
    page = Path("r.html").read_text()
    assert "Subgroups of the test split" in page
    assert "age, sex, admitted, code, creatinine, note" in page
    said = refused(f"train --dense {TABLE} {lasting} --by note --out q")
    assert said.startswith("--by note: no column that tells subgroups; there is 'age', 'sex', 'admitted', 'code'")
