"""The specification, the code and the tests cite the same rules."""

import importlib.util
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "docs" / "spec"
SOURCES = ROOT / "src" / "aqueduct"
TESTS = ROOT / "tests"

DEFINITION = re.compile(r"^\*\*((?:AQ|IPC)-[A-Z]+-[0-9]+)\.\*\*", re.M)
CITATION = re.compile(r"\b(?:AQ|IPC)-[A-Z]+-[0-9]+\b")


def pages() -> list[Path]:
    return sorted(SPEC.glob("*.md"))


def defined() -> list[str]:
    return [rule for page in pages() for rule in DEFINITION.findall(page.read_text())]


def cited(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Return the paths that name each rule."""
    files: dict[str, set[str]] = {}
    for path in paths:
        for rule in CITATION.findall(path.read_text()):
            files.setdefault(rule, set()).add(str(path.relative_to(ROOT)))
    return files


def product() -> list[Path]:
    """Return the sources that implement the rules; the test kit only checks them."""
    return [path for path in SOURCES.rglob("*.py") if SOURCES / "testing" not in path.parents]


def in_order(rules: Iterable[str]) -> list[str]:
    order = {rule: at for at, rule in enumerate(defined())}
    return sorted(rules, key=lambda rule: order.get(rule, -1))


def test_the_pages_define_rules() -> None:
    per_page = {page.name: len(DEFINITION.findall(page.read_text())) for page in pages()}
    assert {name for name, rules in per_page.items() if not rules} == {
        "README.md",
        "7-states.md",
        "11-reference-draft.md",
    }
    assert sum(per_page.values()) > 100


def test_no_rule_is_defined_twice() -> None:
    twice = [rule for rule, count in Counter(defined()).items() if count > 1]
    assert not twice, f"defined more than once: {', '.join(twice)}"


def test_every_rule_is_cited_by_the_code() -> None:
    missing = in_order(set(defined()) - set(cited(product())))
    assert not missing, f"nothing under src/aqueduct cites {', '.join(missing)}"


def test_every_rule_is_named_by_a_test() -> None:
    tests = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    missing = in_order(set(defined()) - set(cited(tests)))
    assert not missing, f"nothing under tests names {', '.join(missing)}"


def test_every_cited_rule_exists() -> None:
    known = set(defined())
    everything = [
        *pages(),
        *SOURCES.rglob("*.py"),
        *TESTS.rglob("*.py"),
        *(ROOT / "tools").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
    ]
    unknown = [
        f"{rule} (in {', '.join(sorted(files))})"
        for rule, files in cited(everything).items()
        if rule not in known
    ]
    assert not unknown, f"no page defines {'; '.join(unknown)}"


def test_the_numbers_of_a_family_start_at_one_without_gaps() -> None:
    """The number of a removed rule is not used again; list it in ``retired``."""
    retired: set[str] = set()
    families: dict[str, set[int]] = {}
    for rule in [*defined(), *retired]:
        family, number = rule.rsplit("-", 1)
        families.setdefault(family, set()).add(int(number))
    holes = {
        family: sorted(set(range(1, max(numbers) + 1)) - numbers)
        for family, numbers in families.items()
    }
    assert {family: missing for family, missing in holes.items() if missing} == {}


def test_the_states_page_matches_the_transition_tables() -> None:
    """Write it again with ``python tools/states.py``."""
    path = ROOT / "tools" / "states.py"
    spec = importlib.util.spec_from_file_location("states", path)
    assert spec is not None
    assert spec.loader is not None
    states = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(states)
    assert (SPEC / "7-states.md").read_text() == states.page()


DRAFT = SPEC / "11-reference-draft.md"


def sections_of_the_draft_page() -> dict[str, str]:
    parts = re.split(r"^## (.*)$", DRAFT.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows_about_the_draft() -> list[tuple[str, str]]:
    """Return the sentences of the draft, in our words, with where they went."""
    table = sections_of_the_draft_page()["The draft, sentence by sentence"]
    rows = re.findall(r"^\| (.+?) \| (.*?) ?\|$", table, re.M)
    return [row for row in rows if not row[0].startswith("**") and row != ("the draft", "rule")]


def departures_from_the_draft() -> set[str]:
    text = sections_of_the_draft_page()["Where this departs from the draft"]
    bullets = re.split(r"^- ", text, flags=re.M)[1:]
    assert all(bullet.startswith("*") and CITATION.search(bullet) for bullet in bullets)
    return set(CITATION.findall(text))


def test_every_sentence_of_the_draft_names_a_rule_or_a_stated_departure() -> None:
    known, stated = set(defined()), departures_from_the_draft()
    rows = rows_about_the_draft()
    assert len(rows) > 100
    for sentence, where in rows:
        rules = CITATION.findall(where)
        assert rules, f"this sentence went nowhere: {sentence}"
        assert set(rules) <= known, f"{sentence}: no page defines all of {where}"
        if where.startswith("departs: "):
            assert set(rules) <= stated, f"{sentence}: {where} is not stated as a departure"
        assert re.fullmatch(r"(departs: )?[A-Z]+-[A-Z]+-\d+(, [A-Z]+-[A-Z]+-\d+)*", where), where


def test_every_departure_from_the_draft_has_a_sentence() -> None:
    departing = {
        rule
        for _, where in rows_about_the_draft()
        if where.startswith("departs: ")
        for rule in CITATION.findall(where)
    }
    text = sections_of_the_draft_page()["Where this departs from the draft"]
    for bullet in re.split(r"^- ", text, flags=re.M)[1:]:
        assert departing & set(CITATION.findall(bullet)), bullet


def test_every_section_of_the_draft_has_sentences() -> None:
    table = sections_of_the_draft_page()["The draft, sentence by sentence"]
    named = set(re.findall(r"^\| (?:\*\*)?(\d(?:\.\d+){0,2}) ", table, re.M))
    frames = {f"2.2.{number}" for number in range(1, 14)}
    sections = {"1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "2.1", "3.6.1"} | frames
    assert sections | {f"3.{number}" for number in range(1, 8)} <= named
