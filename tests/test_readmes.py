"""The README files: links have targets, and the blocks of the first one run in their order."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for pattern in ("*.md", "[!.]*/*.md", "finpod/*/*.md") for path in ROOT.glob(pattern))
SMALL = "--agents 1 --rounds 1 --keep 1 --steps 2000"
"""Settings with which the README's trainings end in seconds."""
BLOCKS = [
    (section.partition("\n")[0], *block)
    for section in (ROOT / "README.md").read_text().split("\n## ")
    for block in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)
]
"""Heading, language and text of each block of code."""


def anchors_of(page):
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("http"):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors_of(target), link


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the example that the README's commands run."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "strategies").mkdir()
    shutil.copy(ROOT / "strategies" / "momentum.py", folder / "strategies")
    return folder


def commands_of(language, text):
    """What to run for a block: its Python; its lines of finpod, trainings made small; its targets of make, only looked up."""
    if language == "python":
        yield [sys.executable, "-c", text]
        return
    for program, *arguments in (shlex.split(line, comments=True) for line in text.splitlines()):
        if program == "make":
            yield ["make", "-n", "-C", str(ROOT), *arguments]
        elif program == "finpod":
            small = SMALL.split() if arguments[0] in ("train", "walkforward") else []
            yield [sys.executable, "-m", "finpod", *arguments, *small]


@pytest.mark.journey
@pytest.mark.parametrize("block", BLOCKS, ids=[f"{heading}-{number}" for number, (heading, *_) in enumerate(BLOCKS)])
def test_the_blocks_of_the_readme_run_in_order(folder, block):
    for command in commands_of(*block[1:]):
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{shlex.join(command[-12:])}\n{ended.stderr}"
