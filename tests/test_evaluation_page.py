"""The page of an evaluation in a real browser, offline: drawn, replayed, read, and never run."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from prefect.logging import disable_run_logger

from configs.mazes import load_maze_set
from tasks import report as artifacts
from tasks.context import Context
from tasks.evaluation_page import link_report, make_report, p_value, render, write_report
from tasks.evaluation_report import EvaluationReport, GateDecision, build_report
from tasks.gate import judge
from tasks.rates import PairedComparison
from tasks.records import EvaluateRecord
from tests.evaluations import evaluation
from tests.test_evaluation_report import lines
from tests.walks import episode, perfect

MAZES = load_maze_set(Path(__file__).parents[1] / "configs" / "mazes" / "tiny-64.json")
HOSTILE = (
    "</script><script>window.broken = 1</script>",
    '<img src=x onerror="window.broken = 1">',
    "{{ 7 * 7 }}{% raw %}<!--<script>",
    "\u2028line\u2029 \x00 \u202eright to left \U0001f9e9 'quotes\" &amp; &lt;b&gt;",
    "long" * 400,
    "",
)
"""Words that try to end the data, run a script, be a template, or break the layout."""
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
_CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Context, EvaluateRecord]:
    """The base walks to each target and past it; the adapter stops, but for mazes 1 to 3."""
    base = [episode(maze, (perfect(maze)[:-1] + "?U" * 18)[:18]) for maze in MAZES.mazes]
    adapter = [episode(maze, perfect(maze), HOSTILE) for maze in MAZES.mazes]
    adapter[0] = episode(MAZES.mazes[0], perfect(MAZES.mazes[0]), ["I see. ('move', 0) I think"])
    adapter[1] = episode(MAZES.mazes[1], "?" * 18, HOSTILE)
    adapter[2] = episode(MAZES.mazes[2], "D" * 18)
    adapter[3] = episode(MAZES.mazes[3], "DS")
    folder = tmp_path_factory.mktemp("page")
    context, scores = evaluation(folder, MAZES, base, adapter)
    with context.run.metrics.open("w") as file:
        for line in lines(12, resumed_at=5, **{"policy/policy_entropy": 0.2}):
            file.write(line.model_dump_json() + "\n")
    return context, scores


@pytest.fixture(scope="module")
def report(made: tuple[Context, EvaluateRecord]) -> EvaluationReport:
    context, scores = made
    decision = GateDecision(
        promoted=False,
        reasons=("<b>60</b> of 64 is too few",),
        comparisons=(PairedComparison(opponent="base", wins=60, losses=0, p_value=1e-9),),
    )
    return build_report(context.run, scores, decision)


@pytest.fixture(scope="module")
def page_file(report: EvaluationReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(report, tmp_path_factory.mktemp("written"))


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, page_file: Path) -> Iterator[Visit]:
    """Open the page offline; afterwards nothing was fetched, reported or broken."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []
    requests: list[str] = []

    def opened(**options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce"} | options)
        contexts.append(context)
        context.set_default_timeout(15_000)
        context.set_offline(True)
        context.on("request", lambda request: requests.append(request.url))
        context.on("console", lambda message: complaints.append(message.text))
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        page = context.new_page()
        page.goto(page_file.as_uri())
        return page

    yield opened
    for context in contexts:
        for page in context.pages:
            assert page.evaluate("window.broken") is None
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {page_file.as_uri()}


def turn_shown(page: Page) -> str:
    return page.locator("#turn-number").inner_text()


def test_64_mazes_are_drawn_with_both_walks_and_their_outcomes(visit: Visit) -> None:
    page = visit()
    expect(page.locator(".tile")).to_have_count(64)
    expect(page.locator(".tile svg")).to_have_count(64)
    expect(page.locator(".tile .trail.base .way")).to_have_count(64)
    expect(page.locator(".tile .trail.adapter .way")).to_have_count(64)
    kinds = [page.locator(".tile").nth(n).locator(".result.adapter").inner_text() for n in range(4)]
    assert [" ".join(kind.split()) for kind in kinds] == [
        "adapter: solved 9 turns",
        "adapter: unparsable 18 turns",
        "adapter: wall 18 turns",
        "adapter: stopped early 2 turns",
    ]


def test_the_headline_has_both_rates_their_intervals_and_the_pairs(visit: Visit) -> None:
    text = visit().locator("main").inner_text().replace("\N{NO-BREAK SPACE}", " ")
    for part in ("Step 6 solves 61 of 64 mazes; the base solves 0", "95.3 %", "0.0 % to 5.7 %"):
        assert part in text
    assert "+61" in text and "64 of 64 mazes can be solved in 18 turns" in text


def test_charts_have_text_and_a_panel_for_each_metric(visit: Visit) -> None:
    page = visit()
    expect(page.locator("#intervals svg .dot")).to_have_count(2)
    lengths = len(set(MAZES.turns_needed()))
    expect(page.locator("#by-length svg .dot")).to_have_count(2 * lengths)
    expect(page.locator("#by-length svg .ceiling")).to_have_count(lengths)
    expect(page.locator(".panel")).to_have_count(2)
    expect(page.locator(".panel svg .resumed")).to_have_count(2)
    expect(page.locator(".panel .value").first).to_have_text("50.0\N{NO-BREAK SPACE}%")
    page.locator(".panel .chart svg").nth(1).hover(position={"x": 8, "y": 40})
    expect(page.locator(".panel .value").first).to_contain_text("step 1:")


def test_the_gates_decision_is_shown_as_text(visit: Visit) -> None:
    section = visit().locator("section[aria-labelledby=gate]")
    expect(section).to_contain_text("Rejected")
    expect(section).to_contain_text("<b>60</b> of 64 is too few")
    expect(section.locator("tbody tr")).to_have_count(1)


def test_a_page_without_a_decision_has_no_gate(report: EvaluationReport) -> None:
    assert 'id="gate"' not in render(report.model_copy(update={"decision": None}))


def test_a_click_replays_both_walks_turn_by_turn_with_the_words(visit: Visit) -> None:
    page = visit()
    page.locator(".tile").first.click()
    dialog = page.locator("dialog")
    expect(dialog).to_be_visible()
    expect(dialog.locator("h2")).to_contain_text("Maze\N{NO-BREAK SPACE}0")
    assert turn_shown(page) == "turn 0 of 18"
    page.click("#forward")
    assert turn_shown(page) == "turn 1 of 18"
    words = dialog.locator("ol.turns.adapter li[aria-current]")
    expect(words).to_contain_text("I see. ('move', 0) I think")
    expect(words.locator("mark")).to_have_text("('move', 0)")
    expect(words).to_contain_text("moved")
    for _ in range(8):
        page.click("#forward")
    expect(dialog.locator(".board.adapter .verdict")).to_have_text("solved, 9 turns")
    page.locator("ol.turns.base button").last.click()
    assert turn_shown(page) == "turn 18 of 18"
    verdict = dialog.locator(".board.base .verdict")
    expect(verdict).to_contain_text("18 turns")
    expect(verdict).to_contain_text("it had stood on the target after turn 8")


def test_the_player_stands_where_the_turn_left_it(visit: Visit) -> None:
    page = visit()
    page.locator(".tile").first.click()
    player = page.locator(".board.adapter .player")
    row, column = MAZES.mazes[0].start
    assert player.get_attribute("cx") == str(column + 0.5)
    page.click("#forward")
    assert (player.get_attribute("cx"), player.get_attribute("cy")) == (
        str(column + 1.5),
        str(row + 0.5),
    )


def test_a_replay_plays_by_itself_to_its_end_unless_motion_is_unwelcome(visit: Visit) -> None:
    page = visit(reduced_motion="no-preference")
    page.locator(".tile").nth(3).click()
    expect(page.locator("#turn-number")).to_have_text("turn 18 of 18", timeout=20_000)
    expect(page.locator("#play")).to_have_text("again")
    still = visit(reduced_motion="reduce")
    still.locator(".tile").nth(3).click()
    expect(still.locator("#play")).to_have_text("play")
    assert turn_shown(still) == "turn 0 of 18"


def test_everything_can_be_done_with_the_keyboard(visit: Visit) -> None:
    page = visit()
    focused = "document.activeElement.dataset.index ?? document.activeElement.id"
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate(focused) == "0":
            break
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "8"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("dialog h2")).to_contain_text("Maze\N{NO-BREAK SPACE}9")
    assert page.evaluate(focused) == "play"
    for key, turn in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        assert turn_shown(page).startswith(f"turn {turn} of ")
    page.keyboard.press("Space")
    expect(page.locator("#play")).to_have_text("pause")
    page.keyboard.press("Space")
    expect(page.locator("#play")).to_have_text("play")
    page.keyboard.press("PageDown")
    expect(page.locator("dialog h2")).to_contain_text("Maze\N{NO-BREAK SPACE}10")
    page.focus("#turn")
    page.keyboard.press("End")
    expect(page.locator("#turn-number")).to_have_text("turn 18 of 18")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    assert page.evaluate(focused) == "10"


def test_filters_show_the_mazes_of_one_kind_and_the_replay_stays_among_them(visit: Visit) -> None:
    page = visit()
    filters = page.locator("#filters button")
    expect(filters).to_have_text(
        [
            "all 64",
            "only the adapter solves 61",
            "only the base solves 0",
            "both solve 0",
            "neither solves 3",
        ]
    )
    expect(filters.nth(2)).to_be_disabled()
    filters.nth(4).click()
    expect(filters.nth(4)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".tile:visible")).to_have_count(3)
    page.locator(".tile:visible").first.click()
    for _ in range(5):
        page.keyboard.press("PageDown")
    expect(page.locator("dialog h2")).to_contain_text("Maze\N{NO-BREAK SPACE}3")


def test_hostile_words_are_shown_as_they_are_and_never_run(visit: Visit) -> None:
    page = visit()
    page.locator(".tile").nth(4).click()
    words = page.locator("ol.turns.adapter li p")
    shown = [words.nth(index).evaluate("node => node.textContent") for index in range(6)]
    assert shown == [*HOSTILE[:5], "no words"]
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0


def test_the_data_cannot_end_its_block_and_no_other_script_may_run(page_file: Path) -> None:
    html = page_file.read_text()
    start = html.index('id="data">') + len('id="data">')
    data = html[start : html.index("</script>", start)]
    assert not set("<>&") & set(data) and data.isascii()
    assert json.loads(data)["mazes"][4]["adapter"]["turns"][0]["reply"] == HOSTILE[0]
    assert "default-src 'none'" in html and "'unsafe-" not in html
    assert html.count("<script") == html.count("</script>") == 2


def test_the_policy_stops_a_script_that_got_into_the_page_all_the_same(
    browser: Browser, page_file: Path, tmp_path: Path
) -> None:
    html = page_file.read_text().replace("</main>", "<script>window.broken = 1</script></main>")
    broken = tmp_path / "broken.html"
    broken.write_text(html)
    page = browser.new_page()
    page.goto(broken.as_uri())
    expect(page.locator(".tile svg")).to_have_count(64)
    assert page.evaluate("window.broken") is None
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_every_text_has_readable_contrast(
    visit: Visit, scheme: str, viewport: dict[str, int]
) -> None:
    page = visit(color_scheme=scheme, viewport=viewport)
    expect(page.locator(".tile svg")).to_have_count(64)
    page.locator("details summary").click()
    found = page.evaluate(_CONTRAST)
    page.locator(".tile").nth(1).click()
    page.click("#forward")
    found += page.evaluate(_CONTRAST)
    assert len(found) > 400
    assert {each["text"]: each["ratio"] for each in found if each["ratio"] < 4.5} == {}


def test_the_two_schemes_are_two(visit: Visit) -> None:
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    light, dark = (visit(color_scheme=each).evaluate(colour) for each in ("light", "dark"))
    assert light == "rgb(252, 251, 249)" and dark == "rgb(20, 23, 26)"


def test_nothing_is_wider_than_a_phone(visit: Visit) -> None:
    page = visit(viewport=PHONE)
    expect(page.locator(".tile svg")).to_have_count(64)
    page.locator("details summary").click()
    page.locator(".tile").nth(1).click()
    for _ in range(5):
        page.click("#forward")
    width = "[document.documentElement.scrollWidth, document.querySelector('dialog').scrollWidth]"
    document, dialog = page.evaluate(width)
    assert document <= 390 and dialog <= 390
    box = page.locator("dialog").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert page.locator("#close").bounding_box()["width"] >= 36


def test_the_outcomes_can_be_read_without_scripts(visit: Visit, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(visit().url)
    text = page.locator("main").inner_text()
    assert "does not run here" in text and "stopped early" in text and "61 of 64" in text
    context.close()


def test_it_works_in_the_frame_that_mlflow_puts_it_into(browser: Browser, page_file: Path) -> None:
    """MLflow shows an HTML file as a blob in a frame that may run scripts and nothing else."""
    page = browser.new_page()
    page.set_content("<title>MLflow</title>")
    page.evaluate(
        """html => {
          const frame = document.createElement("iframe");
          frame.setAttribute("sandbox", "allow-scripts");
          frame.src = URL.createObjectURL(new Blob([html], { type: "text/html" }));
          frame.style.cssText = "width: 1000px; height: 700px";
          document.body.append(frame);
        }""",
        page_file.read_text(),
    )
    frame = page.frame_locator("iframe")
    expect(frame.locator(".tile svg")).to_have_count(64)
    frame.locator(".tile").first.click()
    expect(frame.locator("dialog")).to_be_visible()
    page.close()


def test_the_same_evaluation_gives_the_same_bytes_and_no_other_file(
    report: EvaluationReport, tmp_path: Path
) -> None:
    first = write_report(report, tmp_path).read_bytes()
    assert write_report(report, tmp_path).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_p_values_are_written_as_in_print() -> None:
    assert [p_value(value) for value in (1.0, 0.0312, 0.001, 1.02e-8)] == [
        "1.000",
        "0.031",
        "0.001",
        "1.0 \N{MULTIPLICATION SIGN} 10\N{SUPERSCRIPT MINUS}\N{SUPERSCRIPT EIGHT}",
    ]


def test_the_page_goes_to_its_folder_the_tracker_and_the_flow_runs_page(
    made: tuple[Context, EvaluateRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, scores = made
    shown: list[tuple[str, str]] = []

    def create(markdown: str, key: str, **_: Any) -> Any:
        shown.append((key, markdown))
        return uuid4()

    monkeypatch.setattr(artifacts, "create_markdown_artifact", create)
    with disable_run_logger():
        link_report.fn(context, scores, make_report.fn(context, scores, judge.fn(context, scores)))
    page = scores.results / "report.html"
    tracker: Any = context.backends.tracker
    assert tracker.contents["evaluation/step_6/report.html"] == page.read_bytes()
    ((key, markdown),) = shown
    assert key == artifacts.REPORT_KEY
    assert "**61 of 64** mazes at step 6 (95.3%, 95 % interval 87.1% to 98.4%)" in markdown
    assert f"](/runs/{context.run.run_id}/evaluation/step_6/report.html)" in markdown
    assert f"`{page.as_uri()}`" in markdown
    assert not any(line.startswith(" ") for line in markdown.splitlines())
    assert (make_report.retries, link_report.retries) == (0, 60)
