"""The examples of the README run, and print what it says they print."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_examples_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 2
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "blow-up      t = 0.14384103" in printed
    assert abs(float(namespace["trajectory"].blow_up.time) - 0.14384103622589042) < 1e-11
    assert abs(float(printed.splitlines()[-1]) + 1 / 3) < 1e-9


def test_it_names_both_commands_and_the_picture():
    lines = [line.strip() for line in README.splitlines()]
    simulate = (
        "python3 -m venv .venv && .venv/bin/pip install . && "
        ".venv/bin/gaussflow simulate examples/iris.toml --plot --out results"
    )
    check = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"
    assert simulate in lines
    assert check in lines
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / picture).is_file()
