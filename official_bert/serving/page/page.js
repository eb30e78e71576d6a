// The page: choose a model, write, see the answer and how long it took.

import { element, show } from "./answers.js";

// The tables have no prototype: a model may call its kind or an input "constructor".
const FIELDS = {
  __proto__: null,
  text: { label: "Text", lines: 4 },
  text_pair: { label: "Second text", lines: 4 },
  question: { label: "Question", lines: 1 },
  context: { label: "Text that holds the answer", lines: 8 },
  prompt: { label: "Beginning", lines: 2 },
  endings: { label: "Endings, one on each line", lines: 4 },
};
const ABOUT = {
  __proto__: null,
  fill_mask: "Write [MASK] where a word is missing.",
  classification: "Says which label fits the text.",
  multi_label: "Says which labels fit the text; several may.",
  regression: "Gives the text a number.",
  tagging: "Gives each word of the text a tag.",
  question_answering: "Finds the answer to a question in a text.",
  multiple_choice: "Chooses the ending that fits best.",
  vectors: "Gives the text a vector, and finds the nearest of other texts.",
};
// What the curl command asks while nothing is written; the first one also stands in the field.
const MASK_EXAMPLE = "The capital of France is [MASK].";
const EXAMPLES = {
  __proto__: null,
  text: "The film was good.",
  text_pair: "I liked the film.",
  question: "What is the capital of France?",
  context: "Paris is the capital of France.",
  prompt: "She opened the door and",
  endings: "went in.",
};
const ASK_AGAIN_MS = 1000; // while a model is being loaded
const MOST_CANDIDATES = 1000; // texts that are searched
const AT_ONCE = 32; // of them in a request

const $ = (id) => document.getElementById(id);
let models = [];
let last; // the request in flight
let timer; // of asking again for the models

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
  if (!response.ok) {
    const refused = new Error(content.error);
    if (response.status === 503) refused.retryMs = 1000 * Number(response.headers.get("Retry-After"));
    throw refused;
  }
  return [content, response];
}

async function load() {
  clearTimeout(timer);
  const [chosen, before] = [$("model").value, JSON.stringify(model())];
  models = (await fetched("v1/models"))[0].models;
  $("model").replaceChildren(...models.map((each) => new Option(each.name, each.name)));
  if (models.some((each) => each.name === chosen)) $("model").value = chosen;
  $("about").textContent = `${models.length} ${models.length === 1 ? "model" : "models"} on this server.`;
  if (JSON.stringify(model()) !== before) choose();
  if (models.some((each) => !each.versions.length)) timer = setTimeout(shown(load), ASK_AGAIN_MS);
}

// Asks again and again while the server says that it cannot answer yet.
async function fetchedInTime(address, options) {
  for (;;) {
    try {
      return await fetched(address, options);
    } catch (error) {
      if (!error.retryMs) throw error;
      $("status").textContent = `${error.message}. Asking again…`;
      await new Promise((resolve, reject) => {
        setTimeout(resolve, error.retryMs);
        options.signal.addEventListener("abort", () => reject(options.signal.reason));
      });
    }
  }
}

function choose() {
  const { kind, inputs = [], versions } = model();
  const version = versions.length ? `Version ${versions.join(", ")}.` : "It is being loaded.";
  $("model-help").textContent = [ABOUT[kind], version].filter(Boolean).join(" ");
  const kept = Object.create(null);
  for (const field of $("inputs").querySelectorAll("textarea")) kept[field.name] = field.value;
  $("inputs").replaceChildren();
  for (const name of inputs) {
    const { label, lines } = FIELDS[name] || { label: name, lines: 2 };
    const value = kept[name] || (kind === "fill_mask" ? MASK_EXAMPLE : "");
    const field = element("textarea", { id: `input-${name}`, name, rows: lines, value, required: true, spellcheck: false });
    $("inputs").append(element("label", { htmlFor: field.id, textContent: label }), field);
  }
  $("search").hidden = kind !== "vectors";
  clear();
  showCommand();
}

function clear() {
  last?.abort();
  $("answer").hidden = $("error").hidden = true;
  $("status").textContent = "";
}

const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function instance() {
  const values = Object.create(null);
  for (const { name, value } of $("inputs").querySelectorAll("textarea")) {
    values[name] = name === "endings" ? linesOf(value) : value;
  }
  return values;
}

// The instance, with an example in each field where nothing is written.
function exampleInstance() {
  const values = instance();
  for (const [name, value] of Object.entries(values)) {
    if (value.length) continue;
    const example = EXAMPLES[name] || EXAMPLES.text;
    values[name] = name === "endings" ? Array(model().num_choices || 2).fill(example) : example;
  }
  return values;
}

const addressOf = (name) => new URL(`v1/models/${encodeURIComponent(name)}:predict`, document.baseURI).href;

function showCommand() {
  const { name, inputs = [] } = model();
  $("command").hidden = !inputs.length;
  $("curl").textContent = curl(addressOf(name), JSON.stringify({ instances: [exampleInstance()] }));
  $("copy").textContent = "Copy";
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

// What the texts to search are answered, of models that give vectors.
async function candidates(answered) {
  const texts = model().kind === "vectors" ? linesOf($("candidates").value) : [];
  if (texts.length > MOST_CANDIDATES) {
    throw new Error(`There are ${texts.length} texts to search; this page takes ${MOST_CANDIDATES}.`);
  }
  const found = [];
  for (let first = 0; first < texts.length; first += AT_ONCE) {
    const some = texts.slice(first, first + AT_ONCE);
    const [{ predictions }] = await answered(some.map((text) => ({ text })));
    found.push(...some.map((text, i) => ({ text, vector: predictions[i].vector })));
  }
  return found;
}

async function ask() {
  const chosen = model();
  const asked = instance();
  clear();
  const request = (last = new AbortController());
  const answered = (instances) => fetchedInTime(addressOf(chosen.name), {
    method: "POST",
    body: JSON.stringify({ instances }),
    headers: { "Content-Type": "application/json" },
    signal: request.signal,
  });
  $("status").textContent = "Asking…";
  const start = performance.now();
  const [content, response] = await answered([asked]);
  const milliseconds = performance.now() - start;
  const [summary, nodes] = show(chosen, asked, content.predictions[0], await candidates(answered));
  $("result").replaceChildren(...nodes);
  // A list of numbers or words on one line: between the brackets nothing but the layout breaks lines.
  const onOneLine = (list) => list.replace(/\s*\n\s*/g, " ");
  $("json").textContent = JSON.stringify(content, null, 2).replace(/\[\n[^[\]{}]*\]/g, onOneLine);
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
  if (!model()?.versions.length) shown(load)();
  else answer();
});
$("request").addEventListener("input", () => model() && showCommand());
$("request").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("request").requestSubmit();
});
$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  if (file) $("candidates").value = await file.text();
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
