// Shows the answers of each kind of model. Texts are only set as textContent, so they are never parsed as HTML.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const MAX_NEIGHBORS = 10;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

// rows: [name, probability], in the order to show them.
function probabilities(caption, heading, rows) {
  const best = Math.max(...rows.map(([, share]) => share));
  const body = rows.map(([name, share]) => {
    const bar = element("span", { className: "bar" });
    bar.style.width = `${100 * Math.min(1, share)}%`;
    bar.setAttribute("aria-hidden", "true");
    return element(
      "tr",
      { className: share === best ? "best" : "" },
      element("th", { scope: "row", textContent: name }),
      element("td", { className: "number", textContent: percent(share) }),
      element("td", { className: "share" }, bar),
    );
  });
  const head = element(
    "tr",
    {},
    element("th", { scope: "col", textContent: heading }),
    element("th", { scope: "col", className: "number", textContent: "probability" }),
    element("td"),
  );
  return element(
    "table",
    {},
    element("caption", { textContent: caption }),
    element("thead", {}, head),
    element("tbody", {}, ...body),
  );
}

function table(caption, headings, rows) {
  const cells = (name, values) => values.map((value) => element(name, { textContent: value }));
  const made = element(
    "table",
    {},
    element("caption", { textContent: caption }),
    element("thead", {}, element("tr", {}, ...cells("th", headings))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row)))),
  );
  return element("div", { className: "table" }, made);
}

function classification(answer) {
  const rows = answer.labels.map((label, i) => [label, answer.probabilities[i]]);
  const several = answer.label === undefined;
  const isPredicted = (_, i) => (answer.predicted === undefined ? answer.probabilities[i] > 0.5 : answer.predicted[i]);
  const summary = several ? answer.labels.filter(isPredicted).join(", ") : answer.label;
  rows.sort((one, other) => other[1] - one[1]);
  const caption = several ? "Each label by itself" : "All labels";
  return [summary || (several ? "no label" : "no answer"), [probabilities(caption, "label", rows)]];
}

function fillMask(answer) {
  const masks = answer.tokens.map((tokens, i) =>
    tokens.map((token, k) => [token, answer.probabilities[i][k]]).filter(([token]) => token),
  );
  const filled = masks.filter((rows) => rows.length);
  if (!filled.length) return ["no [MASK]", [element("p", { textContent: "The text has no [MASK] to fill in." })]];
  return [
    filled.map((rows) => rows[0][0]).join(", "),
    filled.map((rows, i) => probabilities(filled.length > 1 ? `[MASK] number ${i + 1}` : "For [MASK]", "word", rows)),
  ];
}

function questionAnswering(answer, asked) {
  if (!answer.answer) return ["no answer", [element("p", { textContent: "The text does not contain an answer." })]];
  const characters = Array.from(asked.context); // Offsets count characters, not UTF-16 units.
  const part = (from, to) => characters.slice(from, to).join("");
  return [
    answer.answer,
    [
      element(
        "p",
        { className: "passage" },
        part(0, answer.start),
        element("mark", { textContent: part(answer.start, answer.end) }),
        part(answer.end),
      ),
      probabilities("The answer", "text", [[answer.answer, answer.probability]]),
    ],
  ];
}

// Returns the entity type of a tag: PER for B-PER (the beginning of an entity) and I-PER (its inside).
const entityType = (tag) => tag.replace(/^[BI]-(?=.)/, "");

function tagging(answer, asked, model) {
  const characters = Array.from(asked.text);
  const part = (from, to) => characters.slice(from, to).join("");
  const names = [...new Set((model.labels || answer.tags).filter((tag) => tag && tag !== "O").map(entityType))];
  const spans = []; // One span per entity.
  const rows = [];
  answer.words.forEach((word, i) => {
    const [start, end, tag] = [answer.starts[i], answer.ends[i], answer.tags[i]];
    if (start < 0) return; // padding
    const before = spans.at(-1);
    if (tag.startsWith("I-") && before?.word === rows.length - 1 && before.name === entityType(tag)) {
      Object.assign(before, { end, word: rows.length });
    } else if (tag !== "O") spans.push({ start, end, name: entityType(tag), word: rows.length });
    rows.push([part(start, end), tag, percent(answer.probabilities[i])]);
  });
  const passage = element("p", { className: "passage" });
  let done = 0;
  for (const { start, end, name } of spans) {
    const number = Math.max(0, names.indexOf(name));
    const span = element("span", { className: number % 2 ? "tag odd" : "tag" }, part(start, end));
    span.style.setProperty("--hue", Math.round((360 * number) / names.length)); // Each type has its own color.
    span.append(element("small", { textContent: name }));
    passage.append(part(done, start), span);
    done = end;
  }
  passage.append(part(done));
  const marked = rows.filter((row) => row[1] !== "O").length;
  const words = element("details", {}, element("summary", { textContent: "Word by word" }));
  words.append(table("All words", ["word", "tag", "probability"], rows));
  return [`${marked} of ${rows.length} words tagged`, [passage, words]];
}

function multipleChoice(answer, asked) {
  const rows = asked.endings.map((ending, i) => [ending, answer.probabilities[i]]);
  return [asked.endings[answer.choice], [probabilities("Endings", "ending", rows)]];
}

function regression(answer) {
  const text = Number(answer.value).toLocaleString("en", { maximumSignificantDigits: 6 });
  return [text, [table("The answer", ["value"], [[text]])]];
}

const cosine = (a, b) => {
  const dot = (c, d) => c.reduce((sum, value, i) => sum + value * d[i], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b) || 1);
};

function vectors(answer, asked, model, candidates) {
  const size = `${answer.vector.length} dimensions`;
  if (!candidates.length) return [size, [table("The vector", ["number", "value"], answer.vector.map((value, i) => [i + 1, value]))]];
  const near = candidates.map(({ text, vector }) => [text, cosine(answer.vector, vector)]);
  near.sort((one, next) => next[1] - one[1]);
  const rows = near.slice(0, MAX_NEIGHBORS).map(([text, value]) => [text, value.toFixed(3)]);
  return [`${size}, ${near.length} texts searched`, [table("Nearest texts", ["text", "cosine"], rows)]];
}

function other(answer) {
  const rows = Object.entries(answer).map(([name, value]) => [name, JSON.stringify(value)]);
  return ["answered", [table("Outputs", ["output", "value"], rows)]];
}

const KINDS = {
  __proto__: null,
  classification,
  multi_label: classification,
  fill_mask: fillMask,
  question_answering: questionAnswering,
  tagging,
  multiple_choice: multipleChoice,
  regression,
  vectors,
};

// Returns a summary line and the nodes of an answer. candidates: the texts to search, for models of vectors.
export function show(model, asked, prediction, candidates) {
  const several = prediction !== null && typeof prediction === "object" && !Array.isArray(prediction);
  return (KINDS[model.kind] || other)(several ? prediction : { value: prediction }, asked, model, candidates);
}
