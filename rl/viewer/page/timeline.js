// Where the seconds of each step went, by lane and state.
"use strict";

(() => {
  const {h} = view;
  const ORDER = ["generate", "environment", "tool", "partner", "queue", "held", "sampling", "learn", "sync", "reward", "write", "validate", "save", "callbacks", "restart", "idle"];
  const LANES = {rollout: "Episodes", learner: "The learner's loop", policy: "The policy"};
  const MEANING = {
    rollout: "What the episodes under way did. They share each second equally.",
    learner: "What the training loop did. “sampling” is the wait for episodes.",
    policy: "Whether the policy generated or received weights. In “held”, an environment held the event loop.",
  };

  view.timelinePage = async (main, [run]) => {
    const body = h("div", {});
    main.append(h("h1", {}, "Timeline"), h("p", {class: "lead"}, "Where the seconds of each step went. A bar is a step; click it to see its episodes."), body);
    let before = "";
    const refresh = async () => {
      const answer = await view.api("curves", {run, names: "time/*"});
      const now = JSON.stringify(answer.curves);
      if (now === before) return;
      before = now;
      draw(body, run, answer.curves);
    };
    await refresh();
    return {title: "Timeline", run, tab: "timeline", refresh, every: 3};
  };

  const draw = (box, run, curves) => {
    const lanes = new Map();
    for (const curve of curves) {
      const [, lane, state] = curve.name.split("/");
      if (!state) continue;
      if (!lanes.has(lane)) lanes.set(lane, []);
      lanes.get(lane).push({state, ...curve});
    }
    const wall = curves.find((curve) => curve.name === "time/wall");
    box.replaceChildren();
    if (!wall) { box.append(view.empty("The run recorded no times: only python -m rl.train does.")); return; }
    const names = [...lanes.keys()].sort((a, b) => (Object.keys(LANES).indexOf(a) + 9) % 9 - (Object.keys(LANES).indexOf(b) + 9) % 9);
    for (const lane of names) box.append(part(run, lane, lanes.get(lane), wall));
  };

  const colour = (state) => `state-${state.replace(/[^a-z]/g, "")}`;

  const part = (run, lane, states, wall) => {
    const rank = (state) => ORDER.indexOf(state) < 0 ? 99 : ORDER.indexOf(state);
    states.sort((a, b) => rank(a.state) - rank(b.state));
    const totals = states.map((s) => s.values.reduce((sum, x) => sum + x, 0));
    const all = totals.reduce((sum, x) => sum + x, 0) || 1;
    const readout = h("p", {class: "hint"});
    const plain = `${view.seconds(all)} in ${view.plural(wall.steps.length, "step")}`;
    readout.textContent = plain;
    const legend = h("table", {class: "legend"}, h("tbody", {}, states.map((s, i) => totals[i] < all / 1000 ? "" : h("tr", {},
      h("td", {}, h("i", {class: `swatch ${colour(s.state)}`}), s.state),
      h("td", {class: "number"}, view.seconds(totals[i])), h("td", {class: "number"}, `${Math.round(100 * totals[i] / all)}%`)))));
    const area = h("div", {class: "plot"});
    let drawn = 0;
    new ResizeObserver(() => {
      const width = Math.floor(area.clientWidth);
      if (width > 60 && width !== drawn) { drawn = width; area.replaceChildren(bars(run, states, wall, width, readout, plain)); }
    }).observe(area);
    return h("section", {class: "lane"}, h("h2", {}, LANES[lane] || lane), MEANING[lane] ? h("p", {class: "hint"}, MEANING[lane]) : "",
      h("div", {class: "lane-body"}, h("div", {}, area, readout), legend));
  };

  const bars = (run, states, wall, width, readout, plain) => {
    const height = 170, left = 44, bottom = 20, top = 6;
    const at = new Map(states.map((s) => [s.state, new Map(s.steps.map((step, i) => [step, s.values[i]]))]));
    const sums = wall.steps.map((step) => states.reduce((sum, s) => sum + (at.get(s.state).get(step) || 0), 0));
    const high = Math.max(...sums, 1e-9);
    const each = (width - left) / wall.steps.length;
    const y = (value) => top + (1 - value / high) * (height - top - bottom);
    const svg = h("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "seconds of each step", class: "pickable"});
    for (const tick of view.ticks(0, high, 3)) svg.append(
      h("line", {class: "grid", x1: left, x2: width, y1: y(tick), y2: y(tick)}),
      h("text", {class: "tick", x: left - 6, y: y(tick) + 3.5, "text-anchor": "end"}, `${+tick.toPrecision(3)} s`));
    wall.steps.forEach((step, i) => {
      let sum = 0;
      for (const s of states) {
        const value = at.get(s.state).get(step) || 0;
        if (value <= 0) continue;
        svg.append(h("rect", {class: `bar ${colour(s.state)}`, x: left + i * each + (each > 4 ? 1 : 0), width: Math.max(0.5, each - (each > 4 ? 2 : 0)),
          y: y(sum + value), height: Math.max(0.3, y(sum) - y(sum + value))}));
        sum += value;
      }
    });
    const every = Math.max(1, Math.ceil(wall.steps.length / (width / 60)));
    wall.steps.forEach((step, i) => { if (i % every === 0) svg.append(h("text", {class: "tick", x: left + (i + 0.5) * each, y: height - 5, "text-anchor": "middle"}, String(step))); });
    const index = (event) => Math.max(0, Math.min(wall.steps.length - 1, Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / each)));
    svg.addEventListener("pointermove", (event) => {
      const step = wall.steps[index(event)];
      const shown = states.map((s) => [s.state, at.get(s.state).get(step) || 0]).filter(([, v]) => v >= 0.005).map(([name, v]) => `${name} ${view.seconds(v)}`);
      readout.textContent = view.plain(`step ${step}: ${shown.join(", ")}`);
    });
    svg.addEventListener("pointerleave", () => { readout.textContent = plain; });
    svg.addEventListener("click", (event) => { location.hash = view.link(["run", run, "episodes"], {kind: "train", step: wall.steps[index(event)]}); });
    return svg;
  };
})();
