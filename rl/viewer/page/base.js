// The viewer's namespace: elements, texts, numbers, requests and links.
"use strict";

const view = {};
(() => {
  // ---- elements -----------------------------------------------------------------------------

  // h("a", {class: "x", href: "#/", onclick: f}, "text", element, [more]): an element. Texts become
  // text nodes, never HTML.
  const SVG = new Set(["svg", "path", "line", "circle", "rect", "g", "text", "title"]);
  view.h = (tag, properties, ...children) => {
    const element = SVG.has(tag) && (tag !== "title" || properties?.svg)
      ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    for (const [key, value] of Object.entries(properties || {})) {
      if (value === undefined || value === null || value === false || key === "svg") continue;
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (key === "value" || key === "checked") element[key] = value;
      else element.setAttribute(key, value === true ? "" : key === "title" || key.startsWith("aria-") ? view.plain(value) : String(value));
    }
    view.append(element, children);
    return element;
  };
  view.append = (element, children) => {
    for (const child of children.flat(Infinity)) {
      if (child === undefined || child === null || child === false || child === "") continue;
      if (child instanceof Node) element.append(child);
      else view.appendText(element, String(child));
    }
  };
  const h = view.h;

  // ---- texts --------------------------------------------------------------------------------

  // Characters that are invisible or that change the direction of the text around them, repeated.
  const CONTROLS = new RegExp(
    "([\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f" +
    "\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}])\\1*", "gu");
  const LONGEST = 6000, LONGEST_LINE = 2000, MOST_MARKS = 500, BLOCK = 20000;
  // Elements within which a browser shows no other elements.
  const PLAIN = new Set(["OPTION", "TITLE", "text", "title"]);

  const mark = (repeated) => {
    const code = repeated.codePointAt(0), count = repeated.length / String.fromCodePoint(code).length;
    return `U+${code.toString(16).toUpperCase().padStart(4, "0")}${count > 1 ? ` ×${count}` : ""}`;
  };
  // A text with the names of its control characters, for a place that takes no elements.
  view.plain = (text) => String(text ?? "").replace(CONTROLS, (found) => ` ${mark(found)} `);

  // Appends a text to an element, with each control character as a mark. After many marks each is
  // a replacement character, because a browser cannot show a million elements.
  view.appendText = (element, text) => {
    if (PLAIN.has(element.tagName)) { element.append(view.plain(text)); return element; }
    let end = 0, marks = 0;
    for (const found of text.matchAll(CONTROLS)) {
      if (found.index > end) element.append(text.slice(end, found.index));
      end = found.index;
      if (++marks > MOST_MARKS) { element.append(text.slice(end).replace(CONTROLS, (same) => "\ufffd".repeat(same.length))); return element; }
      const box = document.createElement("span");
      box.className = "control";
      box.title = "an invisible character";
      box.textContent = mark(found[0]);
      element.append(box);
      end += found[0].length;
    }
    if (end < text.length) element.append(text.slice(end));
    return element;
  };

  // A short text in one line.
  view.line = (text, most = 160) => {
    const flat = String(text ?? "").slice(0, most * 4).replace(/\s+/g, " ").trim();
    const cut = flat.length > most ? flat.slice(0, most) + "…" : flat;
    return view.appendText(h("bdi", {}), cut);
  };

  // A long text as blocks, because a browser needs seconds for one line of a megabyte. A block ends
  // after a line if it can; the browser lays out only those in sight.
  const blocks = (text) => {
    const made = [];
    for (let at = 0; at < text.length;) {
      let end = Math.min(text.length, at + BLOCK);
      if (end < text.length) {
        const line = text.lastIndexOf("\n", end - 1) + 1;
        if (line > at) end = line;
        else if (/[\ud800-\udbff]/.test(text[end - 1])) end -= 1;
      }
      made.push(view.appendText(h("div", {class: "block"}), text.slice(at, end)));
      at = end;
    }
    return made;
  };

  // A block of text as it is. A long text, or one with a long line, is cut with a button.
  view.text = (text, properties) => {
    const whole = String(text ?? "");
    const box = h("div", {...properties, class: `text ${properties?.class || ""}`, dir: "auto"});
    const lines = whole.slice(0, LONGEST).split("\n");
    const cut = lines.map((line) => line.length > LONGEST_LINE ? line.slice(0, LONGEST_LINE) : line);
    const shown = cut.join("\n");
    if (shown.length === whole.length) return view.appendText(box, whole);
    view.appendText(box, shown);
    const button = h("button", {class: "more", onclick: () => {
      box.replaceChildren(...blocks(whole));
    }}, `show all (${view.count(whole.length)} characters)`);
    box.append("… ", button);
    return box;
  };

  // ---- numbers ------------------------------------------------------------------------------

  view.number = (value, digits = 3) => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value) && Math.abs(value) < 1e6) return minus(String(value));
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return minus(value.toExponential(1));
    const places = size >= 100 ? 1 : size >= 10 ? 2 : digits;
    return minus(value.toFixed(places));
  };
  view.fixed = (value, digits = 2) => value === null || value === undefined ? "–" : minus(value.toFixed(digits));
  view.signed = (value, digits = 2) =>
    value === null || value === undefined ? "–" : (value > 0 ? "+" : "") + minus(value.toFixed(digits));
  view.count = (value) => Math.round(value).toLocaleString("en").replace(/,/g, "\u202f");
  view.seconds = (value) => {
    if (value === null || value === undefined) return "–";
    if (value < 10) return `${value.toFixed(2)} s`;
    if (value < 120) return `${value.toFixed(0)} s`;
    if (value < 7200) return `${(value / 60).toFixed(0)} min`;
    return `${(value / 3600).toFixed(1)} h`;
  };
  view.plural = (count, word) => `${view.count(count)} ${word}${count === 1 ? "" : "s"}`;
  const minus = (text) => text.replace("-", "\u2212");

  // ---- requests -----------------------------------------------------------------------------

  // The answer to a question: api("episodes", {run: "a"}). An export holds its answers.
  view.api = async (name, parameters) => {
    const given = Object.entries(parameters || {}).filter(([, value]) => value !== "" && value !== undefined);
    if (view.exported) return view.exported(name, Object.fromEntries(given));
    const response = await fetch(`/api/${name}?${new URLSearchParams(given)}`);
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
    return answer;
  };

  // A page that was written to a file holds its answers.
  const data = document.getElementById("data");
  if (data) {
    const answers = JSON.parse(data.textContent);
    const matches = (row, q) => {
      const [first, last] = (q.step || "").split("-").map(Number);
      const episode = answers.episodes[`${row.file}/${row.line}`].episode;
      return ["kind", "env", "ending", "failure"].every((key) => !q[key] || row[key] === q[key])
        && (!q.step || (row.step >= first && row.step <= (last ?? first)))
        && (!q.task || row.task === Number(q.task)) && (!q.low || row.reward >= Number(q.low)) && (!q.high || row.reward <= Number(q.high))
        && (!q.text || JSON.stringify([episode.system, episode.observation, episode.turns, episode.failure]).toLowerCase().includes(JSON.stringify(q.text.toLowerCase()).slice(1, -1)));
    };
    const SORTS = {tokens: (row) => row.sampled, seconds: (row) => row.generate_s + row.env_s};
    const listed = (q) => {
      const rows = answers.rows.filter((row) => matches(row, q));
      const value = SORTS[q.sort] || ((row) => row[q.sort || "step"]);
      const sign = q.order === "asc" ? 1 : -1;
      rows.sort((a, b) => sign * (value(a) - value(b)));
      return {total: rows.length, offset: q.offset || 0, rows: rows.slice(q.offset || 0, (q.offset || 0) + (q.limit || 100)), files_left: 0};
    };
    const named = (q) => (q.names ? q.names.split(",") : answers.main);
    const chosen = (name, wanted) => wanted.endsWith("*") ? name.startsWith(wanted.slice(0, -1)) : name === wanted;
    const ASKED = {
      runs: () => answers.runs, run: () => answers.run, episodes: listed,
      curves: (q) => ({...answers.curves, curves: named(q).flatMap((wanted) => answers.curves.curves.filter((c) => chosen(c.name, wanted)))}),
      episode: (q) => {
        const at = (by) => answers.episodes[`${q.file}/${Number(q.line) + by}`];
        return at(0) && {...at(0).episode, previous: Boolean(at(-1)), next: Boolean(at(1))};
      },
      tokens: (q) => answers.episodes[`${q.file}/${q.line}`]?.tokens,
      group: (q) => ({members: answers.episodes[`${q.file}/${q.line}`].episode.group.map((row) => answers.episodes[`${row.file}/${row.line}`].episode)}),
    };
    view.exported = (name, q) => {
      const answer = ASKED[name]?.(q);
      if (!answer) throw new Error("this file does not hold that part of the run");
      return answer;
    };
  }

  // ---- links --------------------------------------------------------------------------------

  // "#/run/NAME/episodes?step=3": a list of parts, and parameters.
  view.link = (parts, parameters) => {
    const given = Object.entries(parameters || {}).filter(([, v]) => v !== "" && v !== undefined && v !== null);
    const query = given.length ? `?${new URLSearchParams(given)}` : "";
    return `#/${parts.map(encodeURIComponent).join("/")}${query}`;
  };
  view.place = () => {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    const parts = path ? path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } }) : [];
    return {parts, parameters: Object.fromEntries(new URLSearchParams(query || ""))};
  };
  // Changes the parameters of the link without a new entry in the history.
  view.setParameters = (changes) => {
    const {parts, parameters} = view.place();
    history.replaceState(null, "", view.link(parts, {...parameters, ...changes}));
  };
  view.runLink = (run, ...rest) => view.link(["run", run, ...rest]);
  view.episodeLink = (run, row, parameters) =>
    view.link(["run", run, "episode", row.file, String(row.line)], parameters);
  view.kindName = (row) => row.kind === "train" ? `step ${row.step}`
    : row.step >= 0 ? `${row.kind} after step ${row.step}` : row.kind;

  // ---- small parts --------------------------------------------------------------------------

  view.select = (label, value, options, change) => h("label", {class: "field"}, h("span", {}, label),
    h("select", {onchange: (event) => change(event.target.value), "aria-label": label},
      options.map(([key, name]) => h("option", {value: key, selected: key === value}, name))));
  view.fact = (name, ...value) => h("div", {class: "fact"}, h("dt", {}, name), h("dd", {}, value));
  view.empty = (...text) => h("p", {class: "empty"}, text);
  view.endingClass = (ending) => ending === "finished" ? "" : ending === "failed" ? "bad" : "warn";
})();
