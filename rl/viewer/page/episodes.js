// The list of a run's episodes: search, filters, order, and a table of which only a part exists.
"use strict";

(() => {
  const {h} = view;
  const ROW = 34, PAGE = 100;
  const FILTERS = ["text", "kind", "step", "env", "ending", "failure", "task", "low", "high", "sort", "order"];

  view.episodesPage = async (main, [name], parameters) => {
    const query = Object.fromEntries(FILTERS.filter((key) => parameters[key]).map((key) => [key, parameters[key]]));
    const run = await view.api("run", {run: name});
    const list = new List(name, query);
    const total = h("p", {class: "lead", "aria-live": "polite"});
    list.onanswer = (answer) => {
      const left = answer.files_left ? ` · reading ${view.plural(answer.files_left, "more file")}` : "";
      total.textContent = `${view.plural(answer.total, "episode")}${left}`;
    };
    const change = (changes) => {
      for (const [key, value] of Object.entries(changes)) { if (value) query[key] = value; else delete query[key]; }
      view.setParameters(changes);
      list.restart();
    };
    main.classList.add("wide");
    main.append(h("h1", {}, "Episodes"), total, filters(run, query, change), list.element(change));
    await list.restart();
    return {title: "Episodes", run: name, tab: "episodes", refresh: () => list.update(), every: 3,
      keys: {"/": () => main.querySelector("input[type=search]").focus()}, list};
  };

  const filters = (run, query, change) => {
    let timer = 0;
    const later = (changes) => { clearTimeout(timer); timer = setTimeout(() => change(changes), 200); };
    const choices = (counts, all) => [["", all], ...Object.entries(counts).map(([key, n]) => [key, `${key} (${view.count(n)})`])];
    const some = (label, key, counts, all) => Object.keys(counts).length > 1 || query[key]
      ? view.select(label, query[key] || "", choices(counts, all), (value) => change({[key]: value})) : "";
    const number = (label, key, hint) => h("label", {class: "field"}, h("span", {}, label),
      h("input", {class: "short", value: query[key] || "", placeholder: hint, "aria-label": label,
        oninput: (event) => later({[key]: event.target.value.trim()})}));
    return h("form", {class: "filters", onsubmit: (event) => event.preventDefault()},
      h("label", {class: "field grow"}, h("span", {}, "Search"),
        h("input", {type: "search", value: query.text || "", placeholder: "any text of an episode  ( / )", "aria-label": "Search",
          oninput: (event) => later({text: event.target.value})})),
      some("Played in", "kind", run.counts.kind, "all"),
      number("Step", "step", "3 or 3-8"),
      some("Environment", "env", run.counts.env, "all"),
      some("Ending", "ending", run.counts.ending, "all"),
      some("Failure", "failure", run.counts.failure, "all"),
      number("Task", "task", "any"),
      number("Reward from", "low", "any"), number("to", "high", "any"));
  };

  // Columns: key for sorting, title, class, content.
  const COLUMNS = [
    ["step", "Step", "number w-step", (row) => row.kind === "train" ? String(row.step) : h("span", {class: "quiet", title: view.kindName(row)}, row.step < 0 ? "test" : `val ${row.step}`)],
    ["task", "Task", "number w-task", (row) => String(row.task)],
    ["reward", "Reward", "number w-number", (row) => view.fixed(row.reward)],
    ["advantage", "Advantage", "number w-number", (row) => advantage(row.advantage)],
    ["", "Ending", "w-ending", (row) => h("span", {class: view.endingClass(row.ending)}, view.line(row.failure || row.ending.replaceAll("_", " "), 30))],
    ["turns", "Turns", "number w-small", (row) => String(row.turns)],
    ["tokens", "Tokens", "number w-number", (row) => view.count(row.sampled)],
    ["seconds", "Time", "number w-number", (row) => view.seconds(row.generate_s + row.env_s)],
    ["", "Task and last action", "w-text", (row) => [h("span", {class: "quiet"}, view.line(row.question, 90)), " → ", view.line(row.answer, 120)]],
  ];
  const advantage = (value) => value === null ? h("span", {class: "quiet"}, "–")
    : h("span", {class: value > 0 ? "plus" : value < 0 ? "minus" : ""}, view.signed(value));

  // Keeps only the rows in sight in the page, and fetches a hundred at a time.
  class List {
    constructor(run, query) {
      Object.assign(this, {run, query, total: 0, rows: new Map(), asked: new Set(), at: 0, round: 0});
    }
    element(change) {
      this.space = h("div", {class: "space"});
      this.body = h("div", {class: "rows", role: "rowgroup"});
      this.space.append(this.body);
      this.frame = h("div", {class: "frame", tabindex: "0", onscroll: () => this.draw()}, this.header(change), this.space);
      new ResizeObserver(() => this.draw()).observe(this.frame);
      return this.frame;
    }
    header(change) {
      const sort = (key) => () => {
        const same = (this.query.sort || "step") === key;
        change({sort: key, order: same && (this.query.order || "desc") === "desc" ? "asc" : "desc"});
        mark();
      };
      const head = h("div", {class: "row head", role: "row"}, COLUMNS.map(([key, title, kind]) => key
        ? h("button", {class: `cell ${kind}`, "data-key": key, onclick: sort(key)}, title)
        : h("span", {class: `cell ${kind}`}, title)));
      const mark = () => {
        for (const button of head.querySelectorAll("button")) {
          const chosen = button.dataset.key === (this.query.sort || "step");
          button.classList.toggle("sorted", chosen);
          button.classList.toggle("asc", chosen && this.query.order === "asc");
        }
      };
      mark();
      return head;
    }
    async restart() {
      this.round += 1;
      this.rows.clear();
      this.asked.clear();
      this.at = 0;
      this.frame.scrollTop = 0;
      await this.fetch(0);
    }
    // New episodes of a run that trains: everything in sight is asked again if the number changed.
    async update() {
      const answer = await view.api("episodes", {...this.query, run: this.run, offset: 0, limit: 1});
      this.onanswer(answer);
      if (answer.total === this.total) return;
      this.asked.clear();
      this.rows.clear();
      this.total = answer.total;
      this.draw();
    }
    async fetch(offset) {
      if (this.asked.has(offset)) return;
      this.asked.add(offset);
      const round = this.round;
      try {
        const answer = await view.api("episodes", {...this.query, run: this.run, offset, limit: PAGE});
        if (round !== this.round) return;
        this.total = answer.total;
        this.onanswer(answer);
        answer.rows.forEach((row, i) => this.rows.set(offset + i, row));
        this.draw();
      } catch (error) {
        if (round === this.round) this.body.replaceChildren(view.empty(view.line(error.message, 500)));
      }
    }
    draw() {
      this.space.style.setProperty("height", `${this.total * ROW}px`);
      const first = Math.max(0, Math.floor(this.frame.scrollTop / ROW) - 8);
      const last = Math.min(this.total, first + Math.ceil(this.frame.clientHeight / ROW) + 16);
      for (let page = Math.floor(first / PAGE); page * PAGE < last; page++) this.fetch(page * PAGE);
      this.body.style.setProperty("transform", `translateY(${first * ROW}px)`);
      const shown = [];
      for (let i = first; i < last; i++) shown.push(this.row(i));
      this.body.replaceChildren(...shown);
      if (!this.total) this.body.replaceChildren(view.empty("No episode matches."));
    }
    row(number) {
      const row = this.rows.get(number);
      const chosen = number === this.at ? " chosen" : "";
      if (!row) return h("div", {class: `row waiting${chosen}`}, "");
      return h("a", {class: `row${chosen}`, role: "row", href: view.episodeLink(this.run, row)},
        COLUMNS.map(([, , kind, content]) => h("span", {class: `cell ${kind}`}, content(row))));
    }
    move(by) {
      this.at = Math.max(0, Math.min(this.total - 1, this.at + by));
      const top = this.at * ROW, seen = this.frame.clientHeight - 2 * ROW;
      if (top < this.frame.scrollTop) this.frame.scrollTop = top;
      if (top > this.frame.scrollTop + seen) this.frame.scrollTop = top - seen;
      this.draw();
    }
    open() {
      const row = this.rows.get(this.at);
      if (row) location.hash = view.episodeLink(this.run, row);
    }
  }
})();
