"""Code blocks of documents that stand by themselves run, and print what they are about."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_block_on_scikit_learn_runs():
    section = DOCUMENT.read_text(encoding="utf-8").split("\n## scikit-learn\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    with redirect_stdout(StringIO()) as out:
        exec(compile(block, str(DOCUMENT), "exec"), {})
    scored, validated, together = out.getvalue().strip().splitlines()
    accuracy, certified = scored.split(" ", 1)
    assert float(accuracy) > 0.8
    assert re.match(r"Certified\(epsilon=0\.99\d+, delta=1e-05", certified)
    assert len(validated.strip("[]").split()) == 3
    assert 0.6 < float(together) <= 3 * 0.6
