// The list of runs, and a run's first page: what is wrong, curves, settings.
"use strict";

(() => {
  const {h} = view;
  const COLOURS = {running: "live", ending: "live", finished: "done", unfinished: "done"};

  view.status = ({state}) => state.verdict
    ? h("span", {class: `status ${COLOURS[state.verdict] || "bad"}`}, state.verdict) : "";
  const rate = (tested) => tested ? view.number(tested.success, 2) : "–";
  const interval = (tested) => tested
    ? h("span", {class: "interval"}, ` [${view.number(tested.success_low, 2)}, ${view.number(tested.success_high, 2)}]`) : "";

  // ---- the list of runs ---------------------------------------------------------------------

  view.runsPage = async (main) => {
    const answer = await view.api("runs", {});
    if (answer.single && answer.runs.length === 1) {
      location.replace(view.runLink(answer.runs[0].name));
      return {};
    }
    let before = "";
    const draw = (found) => {
      const now = JSON.stringify(found);
      if (now === before) return;
      before = now;
      const chosen = main.querySelector("tr.chosen a")?.getAttribute("href");
      const runs = [...found.runs].sort((a, b) => b.written - a.written);
      main.replaceChildren(
        h("h1", {}, "Runs"),
        h("p", {class: "lead"}, `${view.plural(runs.length, "run")} in `, h("code", {}, view.line(found.root))),
        runs.length ? table(runs) : view.empty("No run is here yet, nor up to four folders below. ", h("code", {}, "python -m rl.train env=search-qa"),
          " makes one in ", h("code", {}, "runs"), ". If your runs are elsewhere, start the viewer with their folder: ", h("code", {}, "python -m rl.view FOLDER"), ". New runs appear here by themselves."));
      [...main.querySelectorAll("tbody a")].find((a) => a.getAttribute("href") === chosen)?.closest("tr").classList.add("chosen");
    };
    draw(answer);
    return {title: "Runs", crumbs: [], refresh: async () => draw(await view.api("runs", {})), every: 5};
  };

  const table = (runs) => h("div", {class: "scroll"}, h("table", {class: "list runs"},
    h("thead", {}, h("tr", {}, ["Run", "Environment", "Algorithm", "Steps", "Reward", "Before", "After", "", "What is wrong"].map(
      (name, i) => h("th", {class: i >= 3 && i !== 4 && i < 7 ? "number" : ""}, name)))),
    h("tbody", {}, runs.map((run) => h("tr", {"data-row": true, onclick: () => { location.hash = view.runLink(run.name); }},
      h("td", {}, h("a", {href: view.runLink(run.name)}, view.line(run.name, 60))),
      h("td", {class: "env", title: run.env}, view.line(run.env_name, 80)), h("td", {}, view.line(run.algo, 20)),
      h("td", {class: "number"}, run.of_steps ? `${run.steps}/${run.of_steps}` : String(run.steps)),
      h("td", {}, view.sparkline(run.reward)),
      h("td", {class: "number"}, rate(run.before)),
      h("td", {class: "number"}, rate(run.after)),
      h("td", {}, view.status(run)),
      h("td", {class: "worst"},
        reason(run.state.cause, run.state.verdict === "interrupted" ? "" : "high"),
        run.worst ? reason(run.worst.title, run.worst.severity) : ""))))));

  const reason = (text, severity) => text ? h("p", {class: severity, title: text}, view.line(text, 300)) : "";

  // ---- one run ------------------------------------------------------------------------------

  view.overviewPage = async (main, [name], parameters) => {
    const names = (parameters.metrics || "").split(",").filter(Boolean);
    const parts = {};
    for (const part of ["head", "wrong", "curves", "more", "settings"]) main.append(parts[part] = h("section", {class: part}));
    let before = "";
    const refresh = async () => {
      const [run, main] = await Promise.all([view.api("run", {run: name}), view.api("curves", {run: name})]);
      const added = names.length ? await view.api("curves", {run: name, names: names.join(",")}) : {curves: []};
      const now = JSON.stringify([run.problems, run.checked, run.result, run.state, run.steps, run.counts, run.files_left, main, added]);
      if (now === before) return;
      before = now;
      head(parts.head, run);
      wrong(parts.wrong, run);
      curves(parts.curves, name, main, COLOURS[run.state.verdict] !== "live");
      more(parts.more, name, main, added, names, refresh);
      settings(parts.settings, run);
    };
    await refresh();
    return {title: name, run: name, tab: "overview", refresh, every: 3};
  };

  const head = (box, run) => {
    const {before, after, state} = run;
    const left = run.files_left ? ` · reading ${view.plural(run.files_left, "more file")}` : "";
    const played = Object.values(run.counts.kind).reduce((sum, n) => sum + n, 0);
    box.replaceChildren(
      h("h1", {}, view.line(run.name, 120), " ", view.status(run)),
      h("p", {class: "lead"}, view.line([run.env_name, run.algo, run.model, run.seed === null ? "" : `seed ${run.seed}`].filter(Boolean).join(" · "), 200)),
      h("dl", {class: "facts"},
        before ? view.fact("Test tasks before", h("b", {}, rate(before)), interval(before)) : "",
        after ? view.fact("Test tasks after", h("b", {}, rate(after)), interval(after)) : "",
        view.fact("Steps", h("b", {}, run.of_steps ? `${run.steps} of ${run.of_steps}` : String(run.steps))),
        run.result.seconds ? view.fact("Time", h("b", {}, view.seconds(run.result.seconds))) : "",
        view.fact("Episodes", h("a", {href: view.runLink(run.name, "episodes")}, h("b", {}, view.count(played))), run.of_episodes ? ` of ${view.count(run.of_episodes)} are in this file` : left)));
    const note = state.cause || state.message;
    if (note) box.append(h("p", {class: `note ${state.cause && state.verdict !== "interrupted" ? "bad" : ""}`}, view.line(note, 600)));
  };

  const wrong = (box, run) => {
    const found = run.problems;
    const opened = new Set([...box.querySelectorAll("details[open]")].map((details) => details.dataset.cause));
    box.replaceChildren(h("h2", {}, "What is wrong"));
    if (!run.checked) box.append(h("p", {class: "hint"}, "The tokens of the newest steps are being read."));
    else if (!found.length && !run.errors.length) box.append(view.empty(nothing(run)));
    const shown = (problem) => h("li", {class: problem.severity},
      h("strong", {}, view.line(problem.title, 300)),
      h("p", {}, view.line(problem.detail, 1000)),
      problem.advice ? h("p", {class: "advice"}, h("b", {}, "Try: "), view.line(problem.advice, 600)) : "",
      links(run.name, problem), effects(problem.key, found.filter((other) => other.cause === problem.key)));
    const effects = (cause, caused) => caused.length
      ? h("details", {class: "effects", "data-cause": cause, open: opened.has(cause)}, h("summary", {}, `${view.plural(caused.length, "effect")} of this`), h("ul", {class: "problems"}, caused.map(shown)))
      : "";
    box.append(h("ul", {class: "problems"}, found.filter((problem) => !problem.cause).map(shown),
      run.errors.map((error) => h("li", {class: "medium"}, h("strong", {}, "A file cannot be read"), h("p", {}, view.line(error, 600))))));
  };

  // What a run without a finding shows. A run without a step shows nothing.
  const nothing = ({state, steps}) => !steps && state.cause ? "The reason is above; no step was done."
    : state.cause ? "The reason is above. The steps show no other problem." : "No problem was found.";

  const links = (run, problem) => {
    const found = [];
    if (problem.query && Object.keys(problem.query).length) {
      found.push(h("a", {href: view.link(["run", run, "episodes"], problem.query)}, "its episodes"));
    }
    for (const episode of (problem.episodes || []).slice(0, 6)) {
      found.push(h("a", {href: view.episodeLink(run, episode, problem.show)}, `${episode.file}/${episode.line}`));
    }
    return found.length ? h("p", {class: "evidence"}, found.map((link, i) => [i ? " · " : "", link])) : "";
  };

  const pick = (run) => (step) => { location.hash = view.link(["run", run, "episodes"], {kind: "train", step}); };

  const curves = (box, run, answer, over) => {
    const by = Object.fromEntries(answer.curves.map((c) => [c.name, c]));
    const together = [
      by.reward && {...by.reward, label: "training reward", colour: 0},
      by["eval/success"] && {...by["eval/success"], label: "validation success", colour: 1, dots: true},
      by["test/success"] && {...by["test/success"], label: "test success", colour: 2, points: true},
    ].filter(Boolean);
    const rest = answer.curves.filter((c) => !["reward", "eval/success", "test/success"].includes(c.name));
    box.replaceChildren();
    if (!answer.curves.length) { if (!over) box.append(view.empty("No step is done yet.")); return; }
    if (together.length) box.append(h("h2", {}, "Reward and held-out success"),
      view.chart({curves: together, height: 260, pick: pick(run), crosses: answer.no_gradient.map(([step]) => step)}),
      h("p", {class: "hint"}, "Bands and whiskers are 95% intervals.",
        answer.no_gradient.length ? " A cross is a step whose rewards gave no gradient." : "",
        " Click a step to see its episodes."));
    box.append(h("h2", {}, "Metrics"), small(run, rest));
  };

  const small = (run, curves, remove) => h("div", {class: "multiples"}, curves.map((curve) =>
    h("figure", {}, h("figcaption", {}, view.line(curve.name, 60),
      remove ? h("button", {class: "close", title: "remove", onclick: () => remove(curve.name)}, "×") : ""),
      view.chart({curves: [{...curve, label: "last", colour: 0}], height: 110, pick: pick(run)}))));

  const more = (box, run, answer, added, names, refresh) => {
    if (!answer.every.length) { box.replaceChildren(); return; }
    const choose = (wanted) => {
      names.splice(0, names.length, ...wanted);
      view.setParameters({metrics: names.join(",")});
      refresh();
    };
    const field = h("input", {list: "metric-names", placeholder: "add a metric, or time/*", "aria-label": "add a metric",
      onchange: () => { if (field.value) choose([...new Set([...names, field.value])]); }});
    box.replaceChildren(
      added.curves.length ? small(run, added.curves, (name) => choose(names.filter((other) => other !== name))) : "",
      field, h("datalist", {id: "metric-names"}, answer.every.map((name) => h("option", {value: name}))),
      h("span", {class: "hint"}, ` of ${answer.every.length}`));
  };

  const settings = (box, run) => {
    if (box.childElementCount) return;
    const rows = (values) => h("table", {class: "settings"}, h("tbody", {}, Object.entries(values).map(([key, value]) =>
      h("tr", {}, h("th", {}, view.line(key, 80)), h("td", {}, view.text(value))))));
    for (const [title, values] of [["Settings", run.config], ["Versions", run.versions]]) {
      if (Object.keys(values).length) box.append(h("details", {}, h("summary", {}, title), rows(values)));
    }
  };
})();
