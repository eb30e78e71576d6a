// The page: choose a model, write, see the answer and how long it took.

import { element, show } from "./answers.js";

const FIELDS = {
  text: { label: "Text", lines: 4 },
  text_pair: { label: "Second text", lines: 4 },
  question: { label: "Question", lines: 1 },
  context: { label: "Text that holds the answer", lines: 8 },
  prompt: { label: "Beginning", lines: 2 },
  endings: { label: "Endings, one on each line", lines: 4 },
};
const ABOUT = {
  fill_mask: "Write [MASK] where a word is missing.",
  classification: "Says which label fits the text.",
  multi_label: "Says which labels fit the text; several may.",
  regression: "Gives the text a number.",
  tagging: "Gives each word of the text a tag.",
  question_answering: "Finds the answer to a question in a text.",
  multiple_choice: "Chooses the ending that fits best.",
};
const EXAMPLES = { fill_mask: { text: "The capital of France is [MASK]." } };

const $ = (id) => document.getElementById(id);
let models = [];
let last; // the request under way

const model = () => models.find((each) => each.name === $("model").value);
const headers = () => ($("token").value ? { Authorization: `Bearer ${$("token").value}` } : {});

async function fetched(address, options = {}) {
  let response;
  try {
    response = await fetch(address, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached; it may have been stopped.");
  }
  const content = await response.json();
  if (response.status === 401) $("access").hidden = false;
  if (!response.ok) throw new Error(content.error);
  return [content, response];
}

async function load() {
  const chosen = $("model").value;
  models = (await fetched("v1/models"))[0].models;
  $("model").replaceChildren(...models.map((each) => new Option(each.name, each.name)));
  if (models.some((each) => each.name === chosen)) $("model").value = chosen;
  $("about").textContent = `${models.length} ${models.length === 1 ? "model" : "models"} on this server.`;
  choose();
}

function choose() {
  const { kind, inputs = [], versions } = model();
  const version = versions.length ? `Version ${versions.join(", ")}.` : "It is being loaded.";
  $("model-help").textContent = [ABOUT[kind], version].filter(Boolean).join(" ");
  const kept = {};
  for (const field of $("inputs").querySelectorAll("textarea")) kept[field.name] = field.value;
  $("inputs").replaceChildren();
  for (const name of inputs) {
    const { label, lines } = FIELDS[name] || { label: name, lines: 2 };
    const value = kept[name] || EXAMPLES[kind]?.[name] || "";
    const field = element("textarea", { id: `input-${name}`, name, rows: lines, value, required: true, spellcheck: false });
    $("inputs").append(element("label", { htmlFor: field.id, textContent: label }), field);
  }
  clear();
}

function clear() {
  last?.abort();
  $("answer").hidden = $("error").hidden = true;
  $("status").textContent = "";
}

function instance() {
  const values = {};
  for (const { name, value } of $("inputs").querySelectorAll("textarea")) {
    values[name] = name === "endings" ? value.split("\n").map((line) => line.trim()).filter(Boolean) : value;
  }
  return values;
}

function fail(error) {
  $("answer").hidden = true;
  $("status").textContent = "";
  $("error").textContent = error.message;
  $("error").hidden = false;
}

const quoted = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

function curl(address, body) {
  const token = $("token").value ? ' \\\n  -H "Authorization: Bearer $OFFICIAL_BERT_TOKEN"' : "";
  return `curl ${quoted(address)}${token} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(body)}`;
}

async function ask() {
  const chosen = model();
  const asked = instance();
  const body = JSON.stringify({ instances: [asked] });
  const address = new URL(`v1/models/${encodeURIComponent(chosen.name)}:predict`, document.baseURI).href;
  clear();
  const request = (last = new AbortController());
  $("status").textContent = "Asking…";
  const start = performance.now();
  const [content, response] = await fetched(address, {
    method: "POST",
    body,
    headers: { "Content-Type": "application/json" },
    signal: request.signal,
  });
  const milliseconds = performance.now() - start;
  const [summary, nodes] = show(chosen, asked, content.predictions[0]);
  $("result").replaceChildren(...nodes);
  $("curl").textContent = curl(address, body);
  // A list of numbers or words on one line: between the brackets nothing but the layout breaks lines.
  const onOneLine = (list) => list.replace(/\s*\n\s*/g, " ");
  $("json").textContent = JSON.stringify(content, null, 2).replace(/\[\n[^[\]{}]*\]/g, onOneLine);
  $("copy").textContent = "Copy";
  $("answer").hidden = false;
  const time = milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds);
  $("status").textContent = `${summary} (${time} ms, version ${response.headers.get("X-Model-Version")})`;
}

// What goes wrong is shown; a request that a newer one has replaced is not.
const shown = (action) => () => action().catch((error) => error.name === "AbortError" || fail(error));
const answer = shown(ask);

$("model").addEventListener("change", choose);
$("token").addEventListener("change", shown(load));
$("request").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!models.length) shown(load)();
  else answer();
});
$("request").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("request").requestSubmit();
});
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText($("curl").textContent);
    $("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren($("curl")); // no clipboard outside https and localhost
    $("copy").textContent = "Selected: press Ctrl+C";
  }
});
shown(load)();
