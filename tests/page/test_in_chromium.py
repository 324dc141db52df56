"""The page in a real browser: it opens without a word of complaint, asks for nothing, sorts, fits, and obeys nobody else.

Screenshots are left under the directory that AFEC_SCREENSHOTS names, or in a temporary one.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from small_study import EVIL, rename, write_study

from afec.cli import main
from afec.lab import find_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two studies, one of them named by somebody who means no good."""
    root = tmp_path_factory.mktemp("page") / "runs"
    write_study(root, tasks=5)
    write_study(root, tasks=20, seeds=2, benchmark="cifar100-sc")
    hurt = find_runs(root)
    rename(hurt[0], variant=EVIL)
    (hurt[-1].path / "DONE").unlink()
    (hurt[-1].path / "FAILED").write_text(EVIL)
    (hurt[-2].path / "env.json").write_text('{"host": "' + "long" * 500 + '"}')
    out = root.parent / "report.html"
    assert main(["report", str(root), "-o", str(out), "--no-pictures"]) == 0
    return out


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory):
    named = os.environ.get("AFEC_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_quietly_and_nothing_overflows(browser, page, screenshots, width, dark):
    browser.screen(width, dark=dark)
    browser.open(page)
    assert browser.complaints == []
    assert browser.requests == []
    assert browser.ask("window.hacked") is None
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
    # Nothing but what scrolls by itself is wider than the screen.
    outside = """[...document.querySelectorAll('main *')].filter(one => !one.closest('.wide, pre, svg')
        && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 120))"""
    assert browser.ask(outside) == []
    back = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    file = screenshots / f"report-{width}-{'dark' if dark else 'light'}.png"
    browser.picture(file, whole=False)
    assert file.stat().st_size > 10_000


def test_text_can_be_read_on_its_background(browser, page):
    """WCAG's contrast of 4.5 for text, in both themes."""
    contrast = """(() => {
      const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
          .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
      const behind = (one) => { for (; one; one = one.parentElement) { const c = getComputedStyle(one).backgroundColor;
          if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
      return Math.min(...[...document.querySelectorAll('p, td, th, li, dt, dd, h2, h4, a, .state, figcaption')].map(one => {
        const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05); })); })()"""
    for dark in (False, True):
        browser.screen(1280, dark=dark)
        browser.open(page)
        assert browser.ask(contrast) >= 4.5


def test_tables_sort_by_value_and_by_name(browser, page):
    browser.screen(1280)
    browser.open(page)
    column = """(name) => { const table = document.querySelector('table.results');
        const place = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent.trim() === name);
        return [table.tHead.rows[0].cells[place], [...table.tBodies[0].rows].map(row => row.cells[place].textContent)]; }"""
    click, values = f"(name => ({column})(name)[0].querySelector('button').click())", f"(name => ({column})(name)[1])"
    browser.ask(f"{click}('AAC')")
    down = browser.ask(f"{values}('AAC')")
    numbers = [float(text.split()[0]) for text in down if text != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) > 2
    browser.ask(f"{click}('AAC')")
    up = [float(text.split()[0]) for text in browser.ask(f"{values}('AAC')") if text != "–"]
    assert up == sorted(numbers)
    assert browser.ask("document.querySelectorAll('table.results [aria-sort]').length") == 1
    browser.ask(f"{click}('method')")
    names = browser.ask(f"{values}('method')")
    assert names == browser.ask(f"{values}('method').sort((a, b) => a.localeCompare(b))")


def test_the_theme_can_be_changed_and_is_kept(browser, page):
    browser.screen(1280, dark=False)
    browser.open(page)
    browser.ask("document.getElementById('theme').click()")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    browser.open(page)
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    browser.ask("document.getElementById('theme').click()")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.ask("localStorage.clear()")


@pytest.mark.parametrize("what", ["path.dot", "figure.cost rect.bar", "svg.heat"])
def test_values_are_shown_under_the_pointer(browser, page, what):
    browser.screen(1280)
    browser.open(page)
    # Scrolling hides what is shown, and is told in the next frame only.
    place = """(async name => { const one = document.querySelector(name);
        one.scrollIntoView({block: 'center', behavior: 'instant'});
        for (let frame = 0; frame < 3; frame++) await new Promise(done => requestAnimationFrame(done));
        const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })"""
    x, y = browser.ask(f"{place}('{what}')")
    browser.move(x, y)
    shown = browser.ask("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
    assert any(letter.isdigit() for letter in shown), shown
    assert browser.complaints == []


def test_a_figure_is_saved_as_svg_and_as_png(browser, page):
    browser.screen(1280)
    browser.open(page)
    caught = """new Promise(done => { const [names, blobs] = [[], []];
        URL.createObjectURL = (blob) => { blobs.push(blob); return 'blob:kept'; };
        HTMLAnchorElement.prototype.click = function () { names.push(this.download);
            if (names.length === 2) Promise.all(blobs.map(one => one.text())).then(texts => done([names, ...texts])); };
        document.querySelectorAll('#study1 figure.accuracy .save button').forEach(one => one.click()); })"""
    names, svg, png = browser.ask(caught)
    assert names == ["study1-accuracy-1.svg", "study1-accuracy-1.png"]
    assert png[1:4] == "PNG"
    drawn = [one.text for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert drawn[0] == "Averaged accuracy over the tasks"  # by itself it says what it shows, and of whom
    assert {"finetune", "ewc (λ=30)", "ewc@equal-compute (λ=30)"} <= set(drawn)
    assert browser.complaints == []


def test_its_own_policy_stops_a_script_that_is_put_in(browser, page):
    browser.screen(1280)
    browser.open(page)
    browser.ask("""(() => { const one = document.createElement('script'); one.textContent = 'window.hacked = 1';
        document.body.append(one);
        document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.hacked = 1">'); })()""")
    assert browser.ask("new Promise(done => setTimeout(() => done(window.hacked), 200))") is None


def test_every_table_has_a_caption_and_heads(browser, page):
    browser.open(page)
    assert browser.ask(
        "[...document.querySelectorAll('table')].every(one => one.caption && one.querySelector('th[scope=col]'))"
    )
    assert browser.ask("[...document.querySelectorAll('.panel svg')].every(one => one.getAttribute('aria-label'))")
    assert browser.ask(
        "[...document.querySelectorAll('figure')].every(one => one.querySelector('figcaption, .absent'))"
    )
