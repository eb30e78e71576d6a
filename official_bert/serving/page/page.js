// The page: select a model, enter texts, and see the answer and its latency.

import { element, show } from "./answers.js";

// The tables have no prototype, because a kind or an input could be named "constructor".
const FIELDS = {
  __proto__: null,
  text: { label: "Text", lines: 4 },
  text_pair: { label: "Second text", lines: 4 },
  question: { label: "Question", lines: 1 },
  context: { label: "Text that contains the answer", lines: 8 },
  prompt: { label: "Beginning", lines: 2 },
  endings: { label: "Endings, one per line", lines: 4 },
};
const ABOUT = {
  __proto__: null,
  fill_mask: "Write [MASK] where a word is missing.",
  classification: "Assigns one label to the text.",
  multi_label: "Assigns any number of labels to the text.",
  regression: "Assigns a number to the text.",
  tagging: "Assigns a tag to each word.",
  question_answering: "Finds the answer to a question in a text.",
  multiple_choice: "Selects the most likely ending.",
  vectors: "Computes a vector of the text, and finds the most similar of other texts.",
};
// Examples in the curl command for empty fields. The first one is also the initial value of its field.
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
const RELOAD_MS = 1000; // Interval of reloading the list while a model is being loaded.
const MAX_CANDIDATES = 1000; // Maximum number of texts to search.
const TEXTS_PER_REQUEST = 32;

const $ = (id) => document.getElementById(id);
let models = [];
let last; // The controller of the current request.
let timer; // Reloads the list of models.

const model = () => models.find((each) => each.name === $("model").value);
const headers = () => ($("token").value ? { Authorization: `Bearer ${$("token").value}` } : {});

async function fetchJson(address, options = {}) {
  let response;
  try {
    response = await fetch(address, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not respond. It may have been stopped.");
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
  models = (await fetchJson("v1/models"))[0].models;
  $("model").replaceChildren(...models.map((each) => new Option(each.name, each.name)));
  if (models.some((each) => each.name === chosen)) $("model").value = chosen;
  $("about").textContent = `${models.length} ${models.length === 1 ? "model" : "models"} on this server.`;
  if (JSON.stringify(model()) !== before) choose();
  if (models.some((each) => !each.versions.length)) timer = setTimeout(withErrors(load), RELOAD_MS);
}

// Repeats the request while the server returns status 503.
async function fetchWithRetry(address, options) {
  for (;;) {
    try {
      return await fetchJson(address, options);
    } catch (error) {
      if (!error.retryMs) throw error;
      $("status").textContent = `${error.message}. Trying again…`;
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

const splitLines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function instance() {
  const values = Object.create(null);
  for (const { name, value } of $("inputs").querySelectorAll("textarea")) {
    values[name] = name === "endings" ? splitLines(value) : value;
  }
  return values;
}

// Returns the instance with examples in place of empty fields.
function exampleInstance() {
  const values = instance();
  for (const [name, value] of Object.entries(values)) {
    if (value.length) continue;
    const example = EXAMPLES[name] || EXAMPLES.text;
    values[name] = name === "endings" ? Array(model().num_choices || 2).fill(example) : example;
  }
  return values;
}

const predictUrl = (name) => new URL(`v1/models/${encodeURIComponent(name)}:predict`, document.baseURI).href;

function showCommand() {
  const { name, inputs = [] } = model();
  $("command").hidden = !inputs.length;
  $("curl").textContent = curl(predictUrl(name), JSON.stringify({ instances: [exampleInstance()] }));
  $("copy").textContent = "Copy";
}

function fail(error) {
  $("answer").hidden = true;
  $("status").textContent = "";
  $("error").textContent = error.message;
  $("error").hidden = false;
}

const quote = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

function curl(address, body) {
  const token = $("token").value ? ' \\\n  -H "Authorization: Bearer $OFFICIAL_BERT_TOKEN"' : "";
  return `curl ${quote(address)}${token} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quote(body)}`;
}

// Returns the texts to search with their vectors.
async function loadCandidates(predict) {
  const texts = model().kind === "vectors" ? splitLines($("candidates").value) : [];
  if (texts.length > MAX_CANDIDATES) {
    throw new Error(`There are ${texts.length} texts to search. The maximum is ${MAX_CANDIDATES}.`);
  }
  const found = [];
  for (let first = 0; first < texts.length; first += TEXTS_PER_REQUEST) {
    const some = texts.slice(first, first + TEXTS_PER_REQUEST);
    const [{ predictions }] = await predict(some.map((text) => ({ text })));
    found.push(...some.map((text, i) => ({ text, vector: predictions[i].vector })));
  }
  return found;
}

async function ask() {
  const chosen = model();
  const asked = instance();
  clear();
  const request = (last = new AbortController());
  const predict = (instances) => fetchWithRetry(predictUrl(chosen.name), {
    method: "POST",
    body: JSON.stringify({ instances }),
    headers: { "Content-Type": "application/json" },
    signal: request.signal,
  });
  $("status").textContent = "Waiting for the answer…";
  const start = performance.now();
  const [content, response] = await predict([asked]);
  const milliseconds = performance.now() - start;
  const [summary, nodes] = show(chosen, asked, content.predictions[0], await loadCandidates(predict));
  $("result").replaceChildren(...nodes);
  // Lists of numbers or words go on one line. Their line breaks are only layout.
  const onOneLine = (list) => list.replace(/\s*\n\s*/g, " ");
  $("json").textContent = JSON.stringify(content, null, 2).replace(/\[\n[^[\]{}]*\]/g, onOneLine);
  $("answer").hidden = false;
  const time = milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds);
  $("status").textContent = `${summary} (${time} ms, version ${response.headers.get("X-Model-Version")})`;
}

// Shows the errors of an action, except for a request that a newer one has replaced.
const withErrors = (action) => () => action().catch((error) => error.name === "AbortError" || fail(error));
const answer = withErrors(ask);

$("model").addEventListener("change", choose);
$("token").addEventListener("change", withErrors(load));
$("request").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!model()?.versions.length) withErrors(load)();
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
    getSelection().selectAllChildren($("curl")); // Without https or localhost, there is no clipboard.
    $("copy").textContent = "Selected: press Ctrl+C";
  }
});
withErrors(load)();
