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
from afec.experiments.supervised import write_transfers
from afec.lab import find_runs
from afec.learner import LinearProbe
from written_runs import learned, written

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
def widest(tmp_path_factory):
    """Every column that a table can have, twelve methods and more, long labels, and a traceback with a long line."""
    root = tmp_path_factory.mktemp("widest") / "runs"
    bases = ("ewc", "mas", "si", "rwalk")
    methods = (
        "finetune",
        *(base + end for base in bases for end in ("", "@equal-compute", "+afec")),
        "joint",
        "scratch",
    )
    for place, method in enumerate(methods):
        for seed in (0, 1):
            matrix = learned(20, 0.5 + 0.01 * place, 0.02 * seed, 0.01)
            sets = {"training": {"lr": 0.0123456}} if method == "si" else {}
            _, run = written(root, method, seed, matrix, (4,) * 20, (0,) * 20, "cifar100-sc", **sets)
            write_transfers(run.path, [LinearProbe("other", 0.5, 0.4321, 10)])
            run.finish({"cpu_seconds": 123456.0 + seed, "peak_memory_mb": 12345.0 + seed})
    hurt = find_runs(root)[0]
    (hurt.path / "DONE").unlink()
    (hurt.path / "FAILED").write_text("Traceback (most recent call last):\nValueError: " + "long-" * 200)
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


# The tables that are wider than their place, with what they say about it; and the cells whose text is cut or spills.
SCROLLED = """[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => [one.getAttribute('aria-label'), getComputedStyle(one, '::before').content])"""
CUT = """[...document.querySelectorAll('td, th')].filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => one.outerHTML.slice(0, 120))"""
OPEN = "document.querySelectorAll('td details').forEach(one => { one.open = true; })"


@pytest.mark.parametrize("which", ["page", "widest"])
def test_no_column_is_cut_on_a_desk(browser, which, request, screenshots):
    browser.screen(1280)
    browser.open(request.getfixturevalue(which))
    heads = browser.ask(
        "[...document.querySelector('table.results').tHead.rows[0].cells].map(one => one.textContent.trim())"
    )
    if which == "widest":
        assert len(heads) == 15, heads
        assert {"AAC, paper", "FWT vs scratch", "transfer", "memory MB"} <= set(heads)
        browser.picture(screenshots / "widest-1280.png", whole=False)
    browser.ask(OPEN)
    assert browser.ask(SCROLLED) == []
    assert browser.ask(CUT) == []


@pytest.mark.parametrize("which", ["page", "widest"])
def test_on_a_phone_a_table_that_scrolls_says_so(browser, which, request):
    browser.screen(390)
    browser.open(request.getfixturevalue(which))
    scrolled = browser.ask(SCROLLED)
    assert len(scrolled) >= 4
    assert {hint for _, hint in scrolled} == {'"More columns: scroll sideways →"'}
    assert browser.ask(CUT) == []
    # The hint is seen at the left edge of the table, wherever it is scrolled to; the last column can be reached.
    reach = """(async () => { const one = document.querySelector('.wide'); one.scrollLeft = 1e6;
        await new Promise(done => requestAnimationFrame(done));
        const last = one.querySelector('thead th:last-child').getBoundingClientRect();
        return last.left >= 0 && last.right <= innerWidth + 1; })()"""
    assert browser.ask(reach)


def test_the_hint_goes_where_the_screen_is_wide_enough(browser, page):
    browser.screen(390)
    browser.open(page)
    assert browser.ask("document.querySelectorAll('.wide[data-more]').length") >= 4
    browser.screen(1280)
    gone = """new Promise(done => { const look = () => document.querySelector('.wide[data-more]')
        ? requestAnimationFrame(look) : done(true); look(); })"""
    assert browser.ask(gone)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_text_of_a_chart_runs_out_of_it_or_over_the_name_of_an_axis(browser, widest, width):
    browser.screen(width)
    browser.open(widest)
    outside = """[...document.querySelectorAll('svg.chart text')].filter(one => { const [box, all] =
        [one.getBoundingClientRect(), one.closest('svg').getBoundingClientRect()];
        return box.left < all.left - 1 || box.right > all.right + 1; }).map(one => one.textContent)"""
    assert browser.ask(outside) == []
    over = """[...document.querySelectorAll('svg.chart')].flatMap(svg => { const name = svg.querySelector('[transform]');
        if (!name) return []; const right = name.getBoundingClientRect().right;
        return [...svg.querySelectorAll('text[text-anchor=end]')].filter(one => one.getBoundingClientRect().left < right)
            .map(one => one.textContent); })"""
    assert browser.ask(over) == []


def test_text_can_be_read_on_its_background(browser, page):
    """WCAG's contrast of 4.5 for text, in both themes."""
    contrast = """(() => {
      const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
          .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
      const behind = (one) => { for (; one; one = one.parentElement) { const c = getComputedStyle(one).backgroundColor;
          if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
      const texts = 'p, td, td span, th, li, dt, dd, h2, h4, a, .state, figcaption';
      return Math.min(...[...document.querySelectorAll(texts)].map(one => {
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
    assert drawn[0] == "AAC over the tasks so far"  # by itself it says what it shows, and of whom
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
