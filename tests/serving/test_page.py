"""The server's page in a real browser: clicks, keys and a phone screen. Skipped without Chromium."""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest

from official_bert.checkpoints.checksums import CHECKSUM_FILE
from official_bert.inference.exports import METADATA_FILE
from tests import make
from tests.serving import served_models
from tests.serving.serving_client import Client, running

pytestmark = pytest.mark.slow
EVIL = "<img src=x onerror=\"document.title='gotcha'\"><script>document.title='gotcha'</script>"


@pytest.fixture(scope="module")
def browser():
    from playwright import sync_api as api

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        pytest.skip("this machine has no Chromium")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextlib.contextmanager
def opened(browser, url: str, ready: str = "#model option", **settings: Any):
    """Opens the page and waits for an element. Any message on the browser's console is a failure."""
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"], **settings) as context:
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.complaints, foreign = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda sent: sent.url.startswith((url, "data:")) or foreign.append(sent.url))
        page.goto(url)
        page.wait_for_selector(ready, state="attached")
        yield page
    assert page.complaints == []
    assert foreign == []


@pytest.fixture
def page(browser, client: Client, request: pytest.FixtureRequest):
    """The page on a desktop or a phone."""
    with opened(browser, client.url, viewport=getattr(request, "param", {"width": 1000, "height": 900})) as page:
        yield page


def answered(page, model: str, **texts: str) -> str:
    """Selects a model, enters texts, clicks the button, and returns the text of the answer on the page."""
    page.get_by_label("Model").select_option(model)
    for label, text in texts.items():
        page.locator(f"#input-{label}").fill(text)
    page.get_by_role("button", name="Answer").click()
    page.wait_for_selector("#answer:not([hidden])")
    return page.locator("#status").inner_text()


def test_classification_shows_probabilities_with_bars(page):
    assert re.fullmatch(r"short \(\d+(\.\d)? ms, version 1\)", answered(page, "length", text="it's short"))
    rows = page.locator("#result tbody tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [["short", "90.0 %"], ["long", "10.0 %"]]
    wide, narrow = [bar.bounding_box()["width"] for bar in page.locator(".bar").all()]
    assert wide == pytest.approx(9 * narrow, rel=0.05)


CANDIDATES = ["paris", "lyon", "<b>x</b>", "rome", "nice"]


@pytest.mark.parametrize(("model", "texts", "status", "shown"), [
    ("mask", {"text": "[MASK] and [MASK]."}, "paris, paris (",
     {"caption": ["[MASK] number 1", "[MASK] number 2"], "tbody th": CANDIDATES * 2}),
    ("mask", {"text": "none"}, "no [MASK] (", {}),
    ("answers", {"question": "who?", "context": "Ünder😀 the\nsea"}, "Ünder😀 (",
     {"mark": ["Ünder😀"], ".passage": ["Ünder😀 the\nsea"]}),
    ("endings", {"prompt": "p", "endings": "a\nbb\n\ncccc\nd"}, "cccc (", {"tr.best th": ["cccc"]}),
    ("pair", {"text": "x" * 60, "text_pair": "y"}, "first (", {}),
    ("size", {"text": "ab"}, "1,002 (", {}),
    ("names", {"text": "😀 Anna met Bob"}, "2 of 4 words tagged (", {".passage": ["😀 AnnaNAME met BobNAME"]}),
])  # fmt: skip
def test_answers_of_each_kind_are_shown(page, model: str, texts: dict, status: str, shown: dict):
    assert answered(page, model, **texts).startswith(status)
    for selector, expected in shown.items():
        assert page.locator(selector).all_inner_texts() == expected


def test_tags_are_coloured_and_named_and_words_of_one_entity_are_one_span(page):
    colour = "node => getComputedStyle(node).backgroundColor"
    assert answered(page, "names", text="2 Louis 14 met Anna Bob").startswith("5 of 6 words tagged (")
    assert page.locator(".tag").all_inner_texts() == ["2NAME", "Louis 14NAME", "AnnaNAME", "BobNAME"]
    assert page.locator(".tag").first.evaluate(colour) != page.locator("body").evaluate(colour)
    page.get_by_text("Word by word").click()
    assert page.locator("td:nth-child(2)").all_inner_texts() == ["I-NAME", "NAME", "I-NAME", "O", "NAME", "NAME"]


def test_texts_are_never_interpreted_as_html(page):
    for model, fields in (("names", {"text": EVIL}), ("answers", {"question": EVIL, "context": EVIL}),
                          ("endings", {"prompt": "p", "endings": f"{EVIL}\nb\nc\nd"})):  # fmt: skip
        answered(page, model, **fields)
        assert "<img src=x" in page.locator("#answer").inner_text()
        assert page.locator("#result img, #result script").count() == 0
    assert page.title() == "official-bert"


def assert_page_shows_error(page, *names: str) -> None:
    """Clicks the button, and checks that the page shows an error that mentions each name."""
    page.get_by_role("button", name="Answer").click()
    page.get_by_role("alert").wait_for()
    make.assert_mentions(page.get_by_role("alert").inner_text(), *names)
    assert page.complaints
    assert all("400" in each for each in page.complaints)  # Chromium's own message about the status
    page.complaints.clear()


def write_renamed(folder: pathlib.Path, **metadata: object) -> pathlib.Path:
    """Writes a classifier with changed metadata."""
    version = served_models.classifier(folder)
    description = json.loads((version / METADATA_FILE).read_text()) | metadata
    make.write_text(version / METADATA_FILE, json.dumps(description))
    (version / CHECKSUM_FILE).unlink()
    return folder


def read_command(page) -> Any:
    """Returns the body of the request in the curl command on the page."""
    page.get_by_text("The same request with curl").click()
    command = page.locator("#curl").inner_text().split("-d '")[1].removesuffix("'")
    return json.loads(command.replace("'\\''", "'"))


def test_html_in_model_names_is_escaped(browser, tmp_path: pathlib.Path):
    names = ["__proto__", "constructor", "..", "-", "toString"]  # --model accepts only letters, digits, _, . and -
    inputs = [EVIL, "__proto__", "constructor"]
    models = {name: write_renamed(tmp_path / name, kind=name, inputs=["text"]) for name in names}
    models["words"] = write_renamed(tmp_path / "words", kind=EVIL, inputs=inputs, labels=[EVIL])
    models["no-words"] = write_renamed(tmp_path / "no-words", kind={"a": 1}, inputs=["text"])
    with running(models) as (_, client), opened(browser, client.url) as page:
        assert page.locator("#model option").all_inner_texts() == list(models)
        for name in [*names, "no-words"]:
            assert answered(page, name, text="ab").startswith("answered (")
            assert page.locator("#model-help").inner_text() == "Version 1."
            assert "labels" in page.locator("#result").inner_text()
        page.get_by_label("Model").select_option("words")
        assert page.locator("#inputs label").all_inner_texts() == inputs
        assert list(read_command(page)["instances"][0]) == inputs
        for field in page.locator("#inputs textarea").all():
            field.fill("ab")
        assert_page_shows_error(page, "instances[0]", "text")
        assert page.locator("img, form script, #inputs script").count() == 0
        assert page.title() == "official-bert"


def test_the_nearest_texts_are_shown(browser, tmp_path: pathlib.Path):
    import tensorflow as tf
    from playwright.sync_api import expect

    def serving_default(text):
        """Counts the letters a and b in the text."""
        counts = [tf.strings.length(tf.strings.regex_replace(text, f"[^{letter}]", "")) for letter in "ab"]
        return {"vector": tf.cast(tf.stack(counts, -1), tf.float32), "is_truncated": tf.fill(tf.shape(text), False)}

    served_models.write(tmp_path / "counts", 1, "vectors", serving_default)
    content = "".join(f"b{number}\n" for number in range(40)) + "aab <b>\na\nab\n"
    lines = make.write_text(tmp_path / "lines.txt", content)
    with running({"counts": tmp_path / "counts"}) as (_, client), opened(browser, client.url) as page:
        page.wait_for_selector("#search:not([hidden])")
        assert answered(page, "counts", text="aab").startswith("2 dimensions (")
        page.get_by_label("Or a file with one text per line").set_input_files(lines)
        expect(page.locator("#candidates")).to_have_value(content)
        page.get_by_role("button", name="Answer").click()
        page.locator("#status", has_text="2 dimensions, 43 texts searched (").wait_for()
        rows = [row.split("\t") for row in page.locator("#result tbody tr").all_inner_texts()]
        assert len(rows) == 10
        assert rows[:4] == [["aab <b>", "0.949"], ["ab", "0.949"], ["a", "0.894"], ["b0", "0.447"]]
        page.locator("#candidates").fill("a\n" * 1001)
        page.get_by_role("button", name="Answer").click()
        page.wait_for_selector("#error:not([hidden])")
        make.assert_mentions(page.locator("#error").inner_text(), 1001, 1000)


def test_the_displayed_curl_command_sends_the_same_request(page):
    answered(page, "length", text='it\'s $HOME "here" `x` \\')
    page.get_by_text("The same request with curl").click()
    command = page.locator("#curl").inner_text()
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command
    if shutil.which("curl"):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == json.loads(page.locator("#json").text_content())
    assert '"labels": [ "short", "long" ]' in page.locator("#json").text_content()


@pytest.mark.parametrize("model", served_models.ALL)
def test_the_initial_curl_command_fits_the_model(page, client: Client, model: str):
    page.get_by_label("Model").select_option(model)
    body = read_command(page)
    answer = client.predict(model, body)
    assert (answer.status, len(answer.json["predictions"])) == (200, 1)
    (row,) = body["instances"]
    page.locator(f"#input-{next(iter(row))}").fill("it's new")
    assert """it'\\''s new""" in page.locator("#curl").inner_text()


def test_the_page_retries_while_a_model_is_loading(browser, exports: pathlib.Path):
    with running({"size": exports / "size"}, reload_seconds=1000.0) as (server, client):
        versions = dict(server.models["size"].versions)
        server.models["size"].versions.clear()
        with opened(browser, client.url, "text=It is being loaded.") as page:
            assert page.locator("#inputs textarea").count() == 0
            server.models["size"].versions.update(versions)
            page.locator("#input-text").fill("ab")  # arrives without a click
            server.models["size"].versions.clear()
            page.get_by_role("button", name="Answer").click()
            page.get_by_text("size is being loaded; try again later. Trying again").wait_for()
            server.models["size"].versions.update(versions)
            page.wait_for_selector("#answer:not([hidden])")
            assert page.locator("#status").inner_text().startswith("1,002 (")
            page.complaints.clear()  # Chromium's own messages about the status 503


def test_rejections_are_shown(page):
    page.get_by_label("Model").select_option("length")
    page.locator("#input-text").fill("!")
    assert_page_shows_error(page, "[no ! please]")
    assert answered(page, "length", text="ok").startswith("short (")
    assert not page.get_by_role("alert").is_visible()


def test_the_page_can_be_used_with_the_keyboard_and_all_controls_have_accessible_names(page):
    for field, text in (("model", "names"), ("input-text", "Anna ran")):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == field
        page.keyboard.type(text)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".tag")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    answered(page, "answers", question="who?", context="I am")
    for role in ("combobox", "textbox", "button"):
        for each in page.get_by_role(role).all():
            name = each.evaluate("node => (node.labels?.[0] || node).textContent || node.getAttribute('aria-label')")
            assert name.strip(), each
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("[role=status]").count() == 1


@pytest.mark.parametrize("page", [{"width": 360, "height": 740}], indirect=True)
@pytest.mark.parametrize("model", ["names", "answers", "mask"])
def test_the_page_fits_on_a_phone(page, model: str):
    text = "Anna met Bob " * 10 + "x" * 200 + " [MASK]"
    answered(page, model, **({"question": "who?", "context": text} if model == "answers" else {"text": text}))
    page.get_by_text("The same request with curl").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.get_by_role("button", name="Answer").bounding_box()["height"] >= 44  # large enough for a thumb


def test_the_page_asks_for_the_token(browser, exports: pathlib.Path, tmp_path: pathlib.Path):
    serving = running({"size": exports / "size"}, token_file=make.write_text(tmp_path / "token", "s3cret"))
    with serving as (_, client), opened(browser, client.url, "h1") as page:
        page.get_by_label("Token").fill("s3cret")
        page.get_by_label("Token").press("Enter")
        page.wait_for_selector("#model option", state="attached")
        assert answered(page, "size", text="ab").startswith("1,002 (")
        assert "s3cret" not in page.content()
        assert "$OFFICIAL_BERT_TOKEN" in page.locator("#curl").text_content()
        page.complaints.clear()  # Chromium's own message about the status 401
