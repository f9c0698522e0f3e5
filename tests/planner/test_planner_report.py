"""The page of a plan: whole in itself, and what a browser makes of it."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from tessera.planner import compare, decide, plan, table
from tessera.planner.fleet import Slo
from tessera.planner.provision import Traffic, provision
from tessera.planner.report import Report, page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
PLOTS = 3


@pytest.fixture(scope="module")
def document():
    made = plan("llama-3.1-8b", "h200", "qoq-g128", workload="chat", price=3.5)
    return page(
        Report(
            made,
            decide(made.setting),
            table(made.setting),
            compare("llama-3.1-8b", ["h200", "l4"], ["bf16", "qoq-g128"], workload="chat"),
            provision(made, Traffic(rate=100.0), Slo(tpot_s=0.02)),
        )
    )


class Structure(HTMLParser):
    """Counts tags and checks that they close in order."""

    VOID = frozenset({"meta", "link"})

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def structure(document):
    parser = Structure()
    parser.feed(document)
    assert parser.open == []
    return parser


def test_it_holds_three_plots_and_every_table(document, structure):
    assert structure.tags.count("svg") == PLOTS
    assert structure.tags.count("table") == 6  # regimes, summary, operations, verdicts, compared, fleet
    for title in (
        "Roofline of h200",
        "Sequences that fit",
        "decode step",
        "When 4-bit pays",
        "Fleet for 100",
    ):
        assert title in document
    assert "tpot_predicted = " in document  # every formula


def test_it_needs_nothing_from_elsewhere(document, structure):
    assert "script" not in structure.tags
    assert not re.search(r"https?://|@import|url\(", document)
    links = [value for name, value in structure.attributes if name in ("src", "href")]
    assert links == ["data:,"]


def test_names_are_escaped():
    made = plan("llama-3-8b", "custom:from=h100,name=<b>&", "qoq-g128", context=2048)
    document = page(Report(made, decide(made.setting), table(made.setting)))
    assert "<b>&" not in document
    assert "&lt;b&gt;&amp;" in document


def picture(document, directory, size="1240,1300"):
    """PNG of the page, and what it wrote to its console."""
    source, target = directory / "page.html", directory / "page.png"
    source.write_text(document, encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", "--enable-logging=stderr", "--v=0", f"--user-data-dir={directory / 'profile'}",
        f"--window-size={size}", f"--screenshot={target}", source.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return target.read_bytes(), [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@browser
def test_a_browser_shows_the_plots_and_complains_of_nothing(document, tmp_path):
    whole, console = picture(document, tmp_path)
    assert console == []
    assert whole.startswith(b"\x89PNG")
    assert picture(document, tmp_path)[0] == whole
    parts = re.split(r"(<svg.*?</svg>)", document, flags=re.DOTALL)
    assert len(parts) == 2 * PLOTS + 1
    for index in range(1, len(parts), 2):
        bare = re.sub(r"<(polyline|circle).*?</\1>", "", parts[index])
        assert picture("".join([*parts[:index], bare, *parts[index + 1 :]]), tmp_path)[0] != whole


@browser
def test_complaints_would_be_seen(tmp_path):
    assert picture("<script>console.error('wrong')</script>", tmp_path)[1]
    assert picture("<script>undefined.x</script>", tmp_path)[1]
