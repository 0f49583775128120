// Two runs side by side: their curves, and the tasks that both played.
"use strict";

(() => {
  const {h} = view;

  view.comparePage = async (main, [run, other], parameters) => {
    const {runs} = await view.api("runs", {});
    const others = runs.map((r) => r.name).filter((name) => name !== run);
    main.append(h("h1", {}, "Two runs side by side"));
    if (!others.length) { main.append(view.empty("There is no other run to compare with. Start the viewer with the folder above, such as: python -m rl.view runs")); return {title: "Compare", run, tab: "compare"}; }
    main.append(h("div", {class: "filters"},
      view.select("Compare with", other || "", [["", "choose a run"], ...others.map((name) => [name, name])], (name) => { location.hash = view.runLink(run, "compare", ...(name ? [name] : [])); })));
    if (!other) return {title: "Compare", run, tab: "compare"};
    const [ours, theirs] = await Promise.all([run, other].map((name) => view.api("curves", {run: name})));
    main.append(h("div", {class: "multiples two"}, ["reward", "eval/success", "test/success", "entropy", "completions/mean_length"].map((name) => {
      const curves = [[ours, run, 0], [theirs, other, 2]].map(([answer, label, colour]) => {
        const curve = answer.curves.find((c) => c.name === name);
        return curve && {...curve, label, colour, dots: name === "eval/success", points: name === "test/success"};
      }).filter(Boolean);
      return curves.length ? h("figure", {}, h("figcaption", {}, name), view.chart({curves, height: 150})) : "";
    })));
    const box = h("section", {});
    main.append(box);
    await tasks(box, run, other, parameters.kind || "");
    return {title: "Compare", run, tab: "compare"};
  };

  const tasks = async (box, run, other, kind) => {
    let answer = await view.api("compare", {run, other, kind: kind || "train"});
    if (!kind && !answer.tasks.length && answer.kinds.length) answer = await view.api("compare", {run, other, kind: answer.kinds[0]});
    const [, , shared] = answer.num_tasks;
    settings(box, run, other, answer.settings);
    box.append(h("h2", {}, "Tasks that both played"));
    if (answer.kinds.length > 1) box.append(h("div", {class: "filters"},
      view.select("Played in", answer.kind, answer.kinds.map((name) => [name, name]), (value) => { location.hash = view.link(["run", run, "compare", other], {kind: value}); })));
    if (!shared) { box.append(view.empty("The runs share no task. Runs with the same environment and seed do.")); return; }
    box.append(h("p", {class: "hint"}, `${view.plural(shared, "task")}: the second run is better on ${answer.better}, worse on ${answer.worse}. Mean rewards over all steps; the largest difference first. Click a task to see the newest episodes of both.`));
    const both = h("div", {class: "both"});
    box.append(h("div", {class: "scroll short"}, h("table", {class: "list"},
      h("thead", {}, h("tr", {}, ["Task", "Environment", run, other, "Difference"].map((name, i) => h("th", {class: i === 0 || i > 1 ? "number" : ""}, view.line(name, 40))))),
      h("tbody", {}, answer.tasks.map((row) => h("tr", {"data-row": true, tabindex: "0", onclick: () => show(both, run, other, row)},
        h("td", {class: "number"}, String(row.task)), h("td", {}, view.line(row.env, 40)),
        [row.first, row.second].map((side) => h("td", {class: "number"}, view.number(side.reward, 2), h("span", {class: "quiet"}, ` of ${side.count}`))),
        h("td", {class: `number ${row.difference > 0 ? "plus" : row.difference < 0 ? "minus" : ""}`}, view.signed(row.difference))))))), both);
    await show(both, run, other, answer.tasks[0]);
  };

  const settings = (box, run, other, differing) => box.append(
    h("h2", {}, "Settings that differ"),
    differing.length ? h("div", {class: "scroll short"}, h("table", {class: "list differing"},
      h("thead", {}, h("tr", {}, ["Setting", run, other].map((name) => h("th", {}, view.line(name, 40))))),
      h("tbody", {}, differing.map((row) => h("tr", {},
        h("td", {}, view.line(row.name, 80)), h("td", {}, view.line(row.first, 200)), h("td", {}, view.line(row.second, 200)))))))
      : view.empty("All settings are equal."));

  const show = async (box, run, other, row) => {
    const found = await Promise.all([[run, row.first], [other, row.second]].map(([name, side]) =>
      view.api("episode", {run: name, file: side.file, line: side.line}).then((episode) => [name, episode])));
    box.replaceChildren(h("h3", {}, `Task ${row.task}`), view.text(found[0][1].observation),
      view.side(found.map(([name, episode]) => view.column(name, episode, `${name} · ${view.kindName(episode.row)}`, false))));
  };
})();
