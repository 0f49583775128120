// Curves over the steps of a run, as SVG.
"use strict";

(() => {
  const {h} = view;
  const LEFT = 44, RIGHT = 10, TOP = 8, BOTTOM = 22;

  // Round numbers from low to high, about `count` of them.
  view.ticks = (low, high, count) => {
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
    return ticks;
  };

  // A chart of curves that follows its container's width.
  // curves: [{name, label, steps, values, low, high, points}], height, crosses: [steps], pick(step).
  view.chart = (options) => {
    const box = h("div", {class: "chart"});
    const readout = h("div", {class: "readout", "aria-live": "off"});
    const area = h("div", {class: "plot"});
    box.append(readout, area);
    let drawn = 0;
    const observer = new ResizeObserver(() => {
      const width = Math.floor(area.clientWidth);
      if (width > 60 && width !== drawn) {
        drawn = width;
        area.replaceChildren(draw(options, width, readout));
      }
    });
    observer.observe(area);
    return box;
  };

  const bounds = (curves) => {
    const all = curves.flatMap((c) => [...c.values, ...(c.low || []), ...(c.high || [])]).filter(Number.isFinite);
    let low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    if (low >= 0 && low < 0.35 * high) low = 0;
    if (low >= 0 && high <= 1 && high > 0.5) high = 1;
    if (low === high) { low -= Math.abs(low) / 10 || 0.5; high += Math.abs(high) / 10 || 0.5; }
    return [low, high];
  };

  const draw = (options, width, readout) => {
    const height = options.height || 150;
    const curves = options.curves.filter((c) => c.steps.length);
    const steps = [...new Set(curves.flatMap((c) => c.steps))].sort((a, b) => a - b);
    const [low, high] = bounds(curves);
    const first = steps[0], last = steps[steps.length - 1];
    const x = (step) => last === first ? (LEFT + width - RIGHT) / 2
      : LEFT + (step - first) / (last - first) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (high - value) / (high - low) * (height - TOP - BOTTOM);
    const svg = h("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": curves.map((c) => c.label || c.name).join(", ")});
    for (const tick of view.ticks(low, high, height > 200 ? 5 : 3)) {
      svg.append(h("line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick)}),
        h("text", {class: "tick", x: LEFT - 6, y: y(tick) + 3.5, "text-anchor": "end"}, short(tick)));
    }
    for (const tick of view.ticks(first, last, Math.min(8, width / 70))) {
      if (Number.isInteger(tick)) svg.append(
        h("text", {class: "tick", x: x(tick), y: height - 6, "text-anchor": "middle"}, String(tick)));
    }
    curves.forEach((curve, number) => drawCurve(svg, curve, number, x, y));
    for (const step of options.crosses || []) {
      const value = curves[0]?.values[curves[0].steps.indexOf(step)];
      if (value !== undefined) svg.append(h("path", {class: "cross",
        d: `M${x(step) - 3.5} ${y(value) - 3.5}l7 7m0-7l-7 7`}));
    }
    hover(svg, {...options, curves, steps, x, y, width, height}, readout);
    return svg;
  };

  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e4 || (size < 1e-3 && size > 0)) return value.toExponential(0).replace("-", "\u2212");
    return String(+value.toPrecision(3)).replace("-", "\u2212");
  };

  const path = (steps, values, x, y) => {
    let pen = "M";
    return steps.map((step, i) => {
      if (!Number.isFinite(values[i])) { pen = "M"; return ""; }
      const part = `${pen}${x(step).toFixed(1)} ${y(values[i]).toFixed(1)}`;
      pen = "L";
      return part;
    }).join("");
  };

  const drawCurve = (svg, curve, number, x, y) => {
    const kind = `series s${curve.colour ?? number}`;
    if (curve.low && curve.points) {
      curve.steps.forEach((step, i) => svg.append(h("line", {class: `${kind} whisker`,
        x1: x(step), x2: x(step), y1: y(curve.low[i]), y2: y(curve.high[i])})));
    } else if (curve.low) {
      const back = [...curve.steps].reverse(), low = [...curve.low].reverse();
      const d = path(curve.steps, curve.high, x, y) + path(back, low, x, y).replace("M", "L") + "Z";
      svg.append(h("path", {class: `${kind} band`, d}));
    }
    if (!curve.points) svg.append(h("path", {class: `${kind} curve`, d: path(curve.steps, curve.values, x, y)}));
    if (curve.points || curve.dots || curve.steps.length === 1) {
      curve.steps.forEach((step, i) => svg.append(
        h("circle", {class: `${kind} dot`, cx: x(step), cy: y(curve.values[i]), r: curve.points ? 4 : 3})));
    }
  };

  // A line at the nearest step with its numbers; a click opens the step's episodes.
  const hover = (svg, plot, readout) => {
    const rule = h("line", {class: "rule hidden", y1: TOP, y2: plot.height - BOTTOM});
    svg.append(rule);
    const plain = () => {
      readout.replaceChildren(...plot.curves.map((curve, i) => label(curve, i, curve.values[curve.values.length - 1])));
      rule.classList.add("hidden");
    };
    const nearest = (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      return plot.steps.reduce((best, step) => Math.abs(plot.x(step) - at) < Math.abs(plot.x(best) - at) ? step : best);
    };
    svg.addEventListener("pointermove", (event) => {
      const step = nearest(event);
      rule.setAttribute("x1", plot.x(step));
      rule.setAttribute("x2", plot.x(step));
      rule.classList.remove("hidden");
      readout.replaceChildren(h("span", {class: "at"}, `step ${step}`),
        ...plot.curves.map((curve, i) => {
          const index = curve.steps.indexOf(step);
          return index < 0 ? "" : label(curve, i, curve.values[index], curve.low?.[index], curve.high?.[index]);
        }));
    });
    svg.addEventListener("pointerleave", plain);
    if (plot.pick) {
      svg.classList.add("pickable");
      svg.addEventListener("click", (event) => plot.pick(nearest(event)));
    }
    plain();
  };

  const label = (curve, number, value, low, high) => h("span", {class: "label"},
    h("i", {class: `swatch s${curve.colour ?? number}`}), `${curve.label || curve.name} `,
    h("b", {}, view.number(value)),
    low === undefined ? "" : h("span", {class: "interval"}, ` [${view.number(low, 2)}, ${view.number(high, 2)}]`));

  // A curve without axes, for the list of runs.
  view.sparkline = (values) => {
    const known = values.filter(Number.isFinite);
    if (known.length < 2) return h("span", {class: "quiet"}, "–");
    const [low, high] = bounds([{values: known}]);
    const d = path(known.map((_, i) => i), known, (i) => 2 + i / (known.length - 1) * 96,
      (v) => 2 + (high - v) / (high - low) * 20);
    return h("svg", {width: 100, height: 24, class: "spark", "aria-hidden": "true"},
      h("path", {class: "series s0 curve", d}));
  };
})();
