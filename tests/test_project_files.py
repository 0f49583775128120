"""The files that GitHub, PyPI, Docker and citation tools read agree with the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

HOME = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEMPLATES = HOME / ".github" / "ISSUE_TEMPLATE"


def test_the_citation_has_the_keys_of_its_format_and_the_projects_version():
    cited = yaml.safe_load((HOME / "CITATION.cff").read_text(encoding="utf-8"))
    # The Citation File Format, version 1.2.0: required keys, and the others that it knows.
    assert cited.keys() >= {"authors", "cff-version", "message", "title"}
    known = {"abstract", "type", "version", "license", "repository-code", "keywords"}
    assert cited.keys() <= {"authors", "cff-version", "message", "title"} | known
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]
    assert cited["repository-code"] == PROJECT["urls"]["Repository"]
    assert all(
        set(author) <= {"name", "given-names", "family-names"} for author in cited["authors"]
    )


def test_a_models_citation_has_the_same_title():
    from rl.reports.card import _BIBTEX

    cited = yaml.safe_load((HOME / "CITATION.cff").read_text(encoding="utf-8"))
    assert f"title = {{{cited['title']}}}" in _BIBTEX
    assert cited["authors"][0]["name"] in _BIBTEX


def test_the_projects_addresses_are_in_one_repository():
    urls = PROJECT["urls"]
    assert urls.keys() == {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    for name in ("Documentation", "Changelog"):
        path = re.fullmatch(r".*/(?:tree|blob)/main/(.*)", urls[name])
        assert path is not None
        assert (HOME / path[1]).exists()


def test_issue_templates_are_forms():
    forms = [path for path in TEMPLATES.glob("*.yml") if path.name != "config.yml"]
    assert {path.stem for path in forms} == {"bug", "feature"}
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert all(field["type"] in ("textarea", "input", "dropdown") for field in fields)
        assert len({field["id"] for field in fields}) == len(fields)
        assert all(field["attributes"]["label"] for field in fields)


def test_a_bug_report_asks_for_the_doctors_output():
    form = yaml.safe_load((TEMPLATES / "bug.yml").read_text(encoding="utf-8"))
    (doctor,) = (field for field in form["body"] if field.get("id") == "doctor")
    assert "python -m rl.doctor RUN" in doctor["attributes"]["description"]
    assert doctor["validations"]["required"] is True


def test_links_of_the_security_page_lead_somewhere():
    page = (HOME / "SECURITY.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert "docs/threat-model.md" in links
    assert [link for link in links if not (HOME / link).is_file()] == []
    assert "python -m rl.doctor" in page


def test_the_image_runs_both_commands_of_the_readme():
    text = (HOME / "Dockerfile").read_text(encoding="utf-8")
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```sh\n(.*)\n```", readme)[:2]
    assert first == "pip install . && " + " ".join(re.findall(r'"([^"]+)"', text.splitlines()[-1]))
    install, tests = second.split(" && ")
    assert f"RUN {install}" in text
    assert f"docker run --rm turnwise {tests}\n" in text
    assert text.count("\nFROM ") == 1
    assert "\nUSER turnwise\n" in text


def test_the_images_context_has_what_the_package_needs():
    ignored = (HOME / ".dockerignore").read_text(encoding="utf-8").split()
    needed = {*("tools", "envs", "agents", "rl", "tests", "docs", "recipes", "examples")}
    needed |= {"benchmarks", "pyproject.toml", "README.md", "LICENSE", "CITATION.cff"}
    assert not needed & set(ignored)
    assert {".git", ".venv", "runs"} <= set(ignored)
