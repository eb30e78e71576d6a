"""A server's page in Chromium: models whose names, words and answers are scripts. None of them runs."""

import contextlib
import json
import pathlib
import random
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tools.robustness.attack import processes, serving
from tools.robustness.attack.processes import NotHeldError
from tools.robustness.attack.samples import SERVED

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = (SERVED,)
_RAN = "window.ranByAttack = true; document.title = 'ran'"
# Each would run the script where the page took it for HTML, a URL, a style, a property or a template.
_HOSTILE = (
    "<script>{0}</script>", "<img src=x onerror=\"{0}\">", "\"><svg onload=\"{0}\">", "'><b onmouseover='{0}'>x</b>",
    "javascript:{0}", "</textarea><script>{0}</script>", "</title><script>{0}</script>",
    "</option></select><img src=x onerror=\"{0}\">", "${{{0}}}", "{{{{{0}}}}}", "');{0};//",
    "\\u003cscript\\u003e{0}\\u003c/script\\u003e", "<iframe srcdoc='<script>parent.{0}</script>'>",
    "<style>@import 'javascript:{0}'</style>", "]]><script>{0}</script>", "__proto__", "constructor",
    "<math><mi//xlink:href=\"data:x,<script>{0}</script>\">", "\u202e<script>{0}</script>",
)  # fmt: skip
_NAMES = ("a<b", "a/b", "<script>", "a b", "a\nb", "..", "__proto__", "constructor", "toString", "-", "a.b")


def find_chromium() -> str | None:
    """Returns the program, None where it is not installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def attack(case: "Case") -> None:
    """Opens the page of models that call themselves and their inputs by scripts, clicks all, and asks them."""
    rng = case.rng
    case.what = "page, hostile words"
    program = find_chromium()
    assert program is not None
    models = case.folder / "models"
    for number, kind in enumerate(sorted(path.name for path in (case.samples.folder / SERVED).iterdir())):
        folder = models / f"{rng.choice(['__proto__', 'constructor', 'm'])}{number or ''}"
        shutil.copytree(case.samples.folder / SERVED / kind, folder)
        for metadata in folder.rglob("official_bert.json"):
            _make_hostile(metadata, rng, case)
        for checksums in folder.rglob("checksums.json"):
            checksums.unlink()
    _check_refused(case, models)
    server, address = serving.started(case, [], models=sorted(models.iterdir()))
    with _page(program, f"http://{address}") as (page, seen):
        for option in page.locator("#model option").all_inner_texts():
            page.get_by_label("Model").select_option(option)
            for field in page.locator("textarea:visible").all():
                field.fill(_text(rng))
                field.hover()
            page.get_by_role("button", name="Answer").click()
            page.wait_for_selector("#answer:not([hidden]), [role=alert]:not([hidden])")
            for summary in page.locator("summary").all():
                if summary.is_visible():
                    summary.click()
        if page.evaluate("window.ranByAttack") or page.title() == "ran" or seen:
            raise NotHeldError(f"a script ran, or another address was asked: {page.title()}, {seen[:3]}")
    server.end_group()


def _text(rng: random.Random) -> str:
    return rng.choice(_HOSTILE).format(_RAN)


def _make_hostile(path: pathlib.Path, rng: random.Random, case: "Case") -> None:
    """Puts scripts in the place of words of an export's own description."""
    metadata = json.loads(path.read_text())
    changed = rng.sample(["kind", "labels", "inputs", "description", "name"], rng.randrange(1, 4))
    for name in changed:
        metadata[name] = [_text(rng) for _ in range(2)] if name in ("labels", "inputs") else _text(rng)
    path.write_text(json.dumps(metadata))
    case.done += f"{path.parents[2].name}: {json.dumps({name: metadata[name] for name in changed})}; "


def _check_refused(case: "Case", models: pathlib.Path) -> None:
    """Gives a model a hostile name on the command line: it is a name of letters, digits and _ . -, or an error."""
    name, folder = case.rng.choice(_NAMES + _HOSTILE), next(models.iterdir())
    running = processes.start("serve", [f"--model={name.format(_RAN)}={folder}", "--port=0"])
    ended = running.wait(until=lambda: '"event": "ready"' in running.output)
    if ended is None:
        if any(each in name for each in "<>/\\\"' \n"):
            running.end_group()
            raise NotHeldError(f"the server took the name {name!r}")
        running.end_group()
    else:
        ended.check((1,))


@contextlib.contextmanager
def _page(program: str, address: str) -> Iterator[tuple[Any, list[str]]]:
    """The page in a new browser, and what it did that it must not do."""
    from playwright import sync_api

    seen: list[str] = []

    def on_dialog(dialog: Any) -> None:
        seen.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def on_error(error: Any) -> None:
        seen.append(f"error {error}")

    def on_request(sent: Any) -> None:
        if not sent.url.startswith((address, "data:")):
            seen.append(sent.url)

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        with contextlib.closing(browser.new_page()) as page:
            page.set_default_timeout(60_000)
            page.on("dialog", on_dialog)
            page.on("pageerror", on_error)
            page.on("request", on_request)
            page.goto(address)
            page.wait_for_selector("#model option", state="attached")
            yield page, seen
        browser.close()
