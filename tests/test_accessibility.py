"""Accessibility of the report: axe-core finds no problem in either colour scheme; contrast; table markup."""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest
from made_pages import Page
from made_results import examined, make_result

from finpod.records import Audit, Finding, Severity
from finpod.report.sections import render
from finpod.report.svg import PALETTE

DARK = "@media screen and (prefers-color-scheme: dark)"
RUN = """<script>axe.run(document).then(found => {
  const place = document.createElement("pre");
  place.id = "axe";
  place.textContent = JSON.stringify({passes: found.passes.map(rule => rule.id), violations: found.violations.map(
    rule => ({id: rule.id, impact: rule.impact, where: rule.nodes.map(node => node.target + ": " + node.failureSummary)}))});
  document.body.appendChild(place);
});</script>"""
CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
            "--disable-background-networking", "--disable-sync", "--virtual-time-budget=20000", "--dump-dom"]  # fmt: skip
SHAPE = 3.0
"""Least contrast of lines and bars (WCAG 2.2, 1.4.11). axe measures that of text."""


@pytest.fixture(scope="module")
def html():
    """A page with every element that there is: sections, badges, boxes, notes."""
    days = {"largest_on": "2018-03-01", "days": 1, "checked": 1}
    changed = Finding("cut", Severity.LOOKS_AHEAD, "decisions", "2018-03-01", "N03", size=0.25, data=days)
    audit = Audit(False, (changed,), ("2018-03-01",))
    manifest = {"source": "simulated", "title": "simulated market"}
    return render(examined(days=300, names=12, randoms=30, audit=audit, in_sample=True, manifest=manifest))


def axe(page, folder, width, scheme="light"):
    """The findings of axe-core on the page in a headless Chromium; skips where either is missing."""
    browser, script = shutil.which("chromium"), os.environ.get("FINPOD_AXE", "")
    if browser is None or not Path(script).is_file():
        pytest.skip("needs chromium on PATH and axe-core's axe.min.js in $FINPOD_AXE")
    assert DARK in page
    page = page.replace(DARK, "@media screen") if scheme == "dark" else page
    # axe sees no contrast over a gradient: the shade at the edges of wide tables is taken away
    page = page.replace("</style>", ".scroll { background: none !important; }</style>", 1)
    source = Path(script).read_text().replace("</script", "<\\/script")
    (folder / "page.html").write_text(page.replace("</body>", f"<script>{source}</script>{RUN}</body>"))
    options = [*CHROMIUM, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900"]
    line = [browser, *options, (folder / "page.html").as_uri()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<pre id="axe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 500)])
def test_axe_finds_nothing(html, tmp_path, scheme, width):
    found = axe(html, tmp_path, width, scheme)
    assert {"color-contrast", "heading-order", "landmark-unique", "td-headers-attr"} <= set(found["passes"])
    assert found["violations"] == []


def colours(html, scheme):
    """The colour variables of a scheme: name -> (red, green, blue), 0 to 255."""
    blocks = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    text = "".join(blocks if scheme == "dark" else blocks[:1])
    return {name: tuple(bytes.fromhex(value)) for name, value in re.findall(r"--([\w-]+): #([0-9a-f]{6});", text)}


def contrast(one, other):
    """Ratio of the relative luminances of two colours, 1 to 21 (WCAG 2.2)."""
    linear = [[v / 3294.6 if v <= 10 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in rgb] for rgb in (one, other)]
    low, high = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_curves_stand_out_from_the_card(html, scheme):
    known = colours(html, scheme)
    for name, colour in PALETTE.items():
        assert name in ("rule", "card") or contrast(known[name], known["card"]) >= SHAPE, name
        assert scheme == "dark" or known[name] == tuple(bytes.fromhex(colour[1:]))


def assert_order(html, scopes):
    """One outline of headings, landmarks and tables; every drawing is described."""
    elements = Page(html).elements
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch(r"h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    tags = [tag for tag, _ in elements]
    assert (tags.count("main"), tags.count("header")) == (1, 1)
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert {attributes["href"].removeprefix("#") for tag, attributes in elements if tag == "a"} <= set(ids)
    assert len(ids) == len(set(ids))
    assert {attributes.get("scope") for tag, attributes in elements if tag == "th"} <= scopes
    regions = [attributes for _, attributes in elements if attributes.get("role") == "region"]
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)
    assert len(regions) == len({region["aria-label"] for region in regions})
    described = re.findall(r'<div [^>]*role="img" aria-label="([^"]{30,})"><svg [^>]*aria-hidden', html)
    assert len(described) == html.count("<svg")
    assert not re.search(r"<(svg|path|text|g|use)[^>]*#[0-9a-f]{6}", html)
    assert '<html lang="en">' in html


@pytest.mark.parametrize("shape", ["full", "bare"])
def test_the_page_has_an_order_that_can_be_heard(html, shape):
    html = html if shape == "full" else render(make_result(days=40))
    assert_order(html, scopes={"col", "row", "rowgroup"})
    tags = [tag for tag, _ in Page(html).elements]
    assert (tags.count("nav"), "a" in tags) == (1, True)
    assert tags.count("table") == html.count('role="region"')
    tracks = re.findall(r'<td class="drawn">(.*?)</td>', html, re.DOTALL)
    assert all('aria-hidden="true"' in track and '<span class="unseen">' in track for track in tracks)
