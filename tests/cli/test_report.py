"""``dpltm report``, ``compare`` and ``privacy check``: what is written, what it says, and what is refused."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from commands import PRIVATE
from dpltm.tickets.model_card import read_statement

DENSE = f"train --dense --model mlp:8 {PRIVATE} --steps 3 --batch-size 100 --epsilon 1 --quiet"
OF_PUB = DENSE.replace("--dense --model mlp:8", "pub")
SAID = (
    *("certified epsilon", "nominal epsilon", "neighbouring relation", "unit of privacy", "accountant", "clip norm"),
    *("normalisation", "Poisson, rate 0.139082", "cost of tuning", "rounding of sums", "sensitivity of the sum"),
    *("provenance of tickets", "winner of 2 tickets", "3 steps, each on records", "false alarms"),
    "Accuracy over steps",
)
"""What reviewers of published models miss, and what a report is read for."""

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """What a browser would see: elements that are open and closed in order, texts, addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += f" {data}"


def page_of(path: str) -> Page:
    """A page that is well-formed, small, needs no network and can be used without eyes."""
    data = Path(path).read_bytes()
    assert len(data) < 2**20
    page = Page(data.decode("utf-8"))
    assert page.open == []
    for tag, attributes in page.tags:
        for name in ("src", "href"):
            address = attributes.get(name) or ""
            assert address.startswith(("data:", "#")) or address == "", address
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") for name in attributes)
        assert tag != "img" or attributes["alt"]
        assert tag != "th" or attributes["scope"] in ("row", "col")
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [
        {"type": "application/json", "id": "dpltm-statement"}
    ]
    outside = re.sub(r'src="data:[^"]*"', "", data.decode("utf-8"))
    assert not re.search(r"url\(|@import|https?:", outside)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {f"#{one}" for one in ids} >= {one["href"] for tag, one in page.tags if tag == "a"}
    assert [tag for tag, _ in page.tags if tag in ("h1", "main", "nav", "header", "footer")] == [
        *("header", "h1", "nav", "main", "footer")
    ]
    return page


@pytest.fixture
def trained(cli: Any) -> Any:
    """Two runs on the same records: ``r`` of a ticket that was drawn, ``d`` of the whole network."""
    assert cli(f"select pub {PRIVATE} --eps1 0.1 --ledger r.jsonl --quiet").code == 0
    assert cli(f"{OF_PUB} --filter tanh --ledger r.jsonl --out r").code == 0
    assert cli(f"{DENSE} --ledger d.jsonl --out d").code == 0
    return cli


def test_what_else_was_released_about_the_same_people_is_counted(cli: Any, refused: Any) -> None:
    for name, budget in (("one", 1), ("two", 2)):
        assert cli(f"{DENSE} --epsilon {budget} --out {name}").code == 0

    def outcome(*options: str) -> dict[str, Any]:
        assert cli("report", "one", *options, "--card", "-o", "page.md", "--quiet").code == 0
        text = Path("page.md").read_text()
        Path("page.md").unlink()
        return dict(read_statement("page.md", text)["outcome"])

    ledger, delta = "digits.ledger.jsonl", json.loads(Path("one/config.json").read_text())["options"]["delta"]
    total = cli("privacy", "ledger", ledger, "--delta", str(delta), "--json").json["privacy"]["certified"]["epsilon"]
    said = outcome()
    assert (said["others"], said["together"], said.get("limit")) == (1, pytest.approx(total), None)
    assert total > json.loads(Path("one/result.json").read_text())["privacy"]["certified"]["epsilon"]
    assert cli("privacy", "budget", ledger, "--epsilon", "7", "--delta", str(delta)).code == 0
    assert outcome()["limit"] == 7
    Path("elsewhere").mkdir()
    for end in ("jsonl", "key"):
        Path(f"digits.ledger.{end}").rename(f"elsewhere/l.{end}")
    assert "others" not in outcome()
    assert outcome("--ledger", "elsewhere/l.jsonl")["others"] == 1
    assert "paid for nothing of one" in refused("report one --ledger pri.jsonl -o page.html")


def test_a_run(trained: Any) -> None:
    body = trained("report r -o r.html --json").json
    keys = ("report", "of", "kind", "state", "problems", "verdict", "decision", "bytes", "privacy")
    assert set(body) == set(keys)
    assert (body["report"], body["kind"], body["state"], body["problems"]) == ("r.html", "run", "finished", [])
    result = json.loads(Path("r/result.json").read_text())
    assert body["privacy"]["certified"] == result["privacy"]["certified"]
    assert body["bytes"] == Path("r.html").stat().st_size
    text = page_of("r.html").text
    for said in SAID:
        assert said in text, said
    assert f"{100 * result['accuracy']:.2f} %" in text
    drawn = [attributes["alt"] for tag, attributes in page_of("r.html").tags if tag == "img"]
    assert drawn == ["What an attacker must miss", "Accuracy over steps"]
    assert "seconds" not in text
    check = trained("privacy check r.html --json").json
    assert (check["ok"], check["problems"], check["entries"]) == (True, [], 3)


def test_other_folders_have_no_report(refused: Any) -> None:
    assert refused("report pub").startswith("pub: a report of it is gone since 0.3: dpltm tickets show SET, and the")
    assert refused("report nothing") == "nothing: no run there; name a folder made by dpltm train or dpltm run"


def test_names_from_files_are_texts(cli: Any) -> None:
    """The name of a dataset comes from its file, and goes into every part of a report."""
    digits = load_digits()
    name = "<script>alert(1)<b> {{ 7 * 7 }} | `x`"
    np.savez(f"{name}.npz", x_train=digits.images[:300].astype(np.uint8), y_train=digits.target[:300])
    made = "train --dense --model mlp:4 --bounds 0,16 --classes 10 --records 300 --steps 2 --noise-multiplier 2"
    assert cli(f"{made} --batch-size 50 --out h --quiet", "--dataset", f"{name}.npz").code == 0
    assert cli("report h -o h.html --quiet").code == 0
    page = page_of("h.html")
    assert name in page.text
    assert " 49 " not in page.text
    assert cli("report h --card -o h.md --quiet").code == 0
    assert "<script" not in Path("h.md").read_text().partition("```json")[0].partition("<!--")[2]
    assert cli("privacy check h.md --json").json["ok"]


def test_a_run_that_is_not_there_yet(trained: Any, refused: Any) -> None:
    Path(".x.checkpoint").mkdir()
    body = trained("report x -o x.html --json").json
    assert (body["state"], body["problems"][0]) == (
        "unfinished", "x is still going, or was interrupted, and has no result; the same command goes on with it",
    )  # fmt: skip
    assert body["privacy"]["certified"]["epsilon"] == "inf", "what it costs is not known here"
    assert "Not complete" in page_of("x.html").text
    done = trained("compare r d x --json").json
    assert [row["state"] for row in done["rows"]] == ["finished", "finished", "unfinished"]
    assert refused("report x --card").startswith(
        "--card: x is unfinished: x is still going, or was interrupted, and has no result; "
    )
    (problem,) = json.loads(trained("privacy check x.html --json").out)["problems"]
    assert problem == "state: unfinished: what it tells of is not complete, so its settings cannot be compared"


DAMAGE = {
    "result.json": ("{", "r/result.json: not valid JSON"),
    "metrics.jsonl": ("{", "r/metrics.jsonl: is missing or damaged"),
    "model.safetensors": ("", "r/model.safetensors: "),
    "lineage.json": (None, "r/lineage.json: cannot be read: No such file or directory"),
    "config.json": ("{}", "r/config.json: not a document of format 'dpltm-run'"),
}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_shows_what_there_is(trained: Any, name: str) -> None:
    content, said = DAMAGE[name]
    path = Path("r") / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    done = trained("report r -o x.html --json")
    assert done.code == 1
    body = json.loads(done.out)
    assert body["state"] == "damaged"
    unknown = name in ("config.json", "lineage.json", "model.safetensors")
    assert (body["privacy"]["certified"]["epsilon"] == "inf") == unknown  # never as if nothing had been spent
    assert (body["privacy"]["nominal"] is None) == unknown  # nobody claims anything of a training that is not known
    assert any(problem.startswith(said) for problem in body["problems"]), body["problems"]
    assert "Not complete" in page_of("x.html").text
    done = trained("compare d r --json")
    assert done.code == 1
    assert [row["state"] for row in json.loads(done.out)["rows"]] == ["finished", "damaged"]


@pytest.mark.parametrize(
    ("term", "value", "said"),
    [
        ("epsilon", 0.1, "certified epsilon 0.1, but its lineage gives 0.99"),
        ("delta", 1e-6, "delta 1e-06, but its settings and lineage give 1e-05"),
        ("unit", "patient", "unit patient, but its settings and lineage give record"),
        ("accountant", "ma", "accountant ma, but its settings and lineage give pld"),
        ("adjacency", "replace-one", "certified epsilon 0.99"),  # as which it costs more
    ],
)
def test_a_result_that_says_less_than_its_lineage_is_named(trained: Any, term: str, value: object, said: str) -> None:
    body = json.loads(Path("d/result.json").read_text())
    body["privacy"]["certified"][term] = value
    Path("d/result.json").write_text(json.dumps(body))
    done = trained("report d -o d.html --json")
    assert done.code == 1
    assert json.loads(done.out)["problems"][0].startswith(f"result.json says {said}")
    assert trained("privacy check d").code == 1


def test_a_comparison(trained: Any) -> None:
    body = trained("compare r d --plot c.png --json").json
    assert set(body) == {"rows", "together", "notes", "plot"}
    assert [row["run"] for row in body["rows"]] == ["r", "d"]
    assert body["rows"][1]["trained"] == "dense"
    assert [row["test_records"] for row in body["rows"]] == [359, 359]
    for row in body["rows"]:
        stored = json.loads(Path(row["run"], "result.json").read_text())
        assert row["accuracy"] == stored["accuracy"]
        assert row["certified"] == stored["privacy"]["certified"]["epsilon"]
        assert row["low"] < row["accuracy"] < row["high"]
        assert row["majority"] == stored["skill"]["majority_accuracy"]
        assert row["auc"] == stored["skill"]["auc"]["value"]
        assert row["chance_over_share"] == stored["skill"]["chance_over_share"]["value"]
    assert body["together"]["runs"] == 2
    assert body["together"]["epsilon"] > max(row["certified"] for row in body["rows"])
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    shown = trained("compare r d").out
    assert "all 2 released together: certified epsilon = " in shown
