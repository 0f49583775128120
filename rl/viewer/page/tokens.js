// The tokens of an episode, coloured by one of their numbers.
"use strict";

(() => {
  const {h} = view;
  const MOST = 4000;

  // name, title, legend, and the colour's level of a token: a class such as "h5", "+3" or "-3".
  const heat = (value, full) => value === null ? "" : `h${Math.min(9, Math.round(Math.abs(value) / full * 9))}`;
  const two = (value, full) => value === null || Math.abs(value) < full / 50 ? "" : `${value > 0 ? "p" : "n"}${Math.min(5, Math.max(1, Math.ceil(Math.abs(value) / full * 5)))}`;
  const COLOURS = {
    mask: {title: "what is trained", legend: "Coloured tokens were sampled by the policy and are trained. The others are the prompt and the environment's text.",
      level: (s, i) => s.mask[i] ? "h5" : ""},
    logprob: {title: "log-probability", legend: "The darker, the less probable the token was when it was sampled. Without colour it was certain (0); the darkest had −5 or less.",
      level: (s, i) => heat(s.logprob[i], 5)},
    ratio: {title: "ratio learner / sampler", legend: "Probability by the learner before the update, divided by the sampler's. Without colour both agree (1). Blue: the learner gives more; red: less; the strongest colour is a factor of 1.5. On-policy, all tokens should have no colour.",
      level: (s, i) => s.ratio?.[i] == null ? "" : two(Math.log(s.ratio[i]), Math.log(1.5))},
    advantage: {title: "advantage", legend: "Blue tokens become more probable by the update, red ones less. The strongest colour is the episode's largest advantage. Without colour the update leaves the token as it is.",
      level: (s, i, scale) => s.advantage ? two(s.advantage[i], scale) : ""},
    entropy: {title: "entropy", legend: "The darker, the less certain the policy was about the token, in nats. The darkest have 3 or more.",
      level: (s, i) => s.entropy ? heat(s.entropy[i], 3) : ""},
    version: {title: "policy version", legend: "Each colour is a version of the weights. An episode with several was continued while the learner updated them.",
      level: (s, i) => s.version[i] < 0 ? "" : `v${s.version[i] % 6}`},
  };
  const NAMES = {logprob: "log-probability of the sampler", learner: "log-probability of the learner", ratio: "ratio", advantage: "advantage", entropy: "entropy"};

  view.tokensPart = async (box, run, row, parameters) => {
    const answer = await view.api("tokens", {run, file: row.file, line: row.line});
    const has = (name) => ["mask", "logprob", "version"].includes(name) || answer.segments.some((s) => s[name]);
    const known = Object.keys(COLOURS).filter(has);
    let colour = known.includes(parameters.colour) ? parameters.colour : known.includes("advantage") && row.advantage ? "advantage" : "mask";
    const legend = h("p", {class: "hint"});
    const detail = h("div", {class: "detail", "aria-live": "polite"}, h("span", {class: "quiet"}, "Point at a token, or press → and ←, to see its numbers."));
    const blocks = h("div", {class: "blocks"});
    const draw = () => {
      legend.textContent = COLOURS[colour].legend;
      blocks.replaceChildren(...answer.segments.map((segment, number) => block(segment, number, answer, colour)));
    };
    const missing = answer.damaged ? h("p", {class: "note warn"}, view.line(answer.damaged, 600)) : known.includes("advantage") ? "" : h("p", {class: "hint"}, "The run recorded no advantages, ratios and entropies of these tokens: they are recorded for training episodes.");
    box.append(
      h("div", {class: "filters"}, view.select("Colour by", colour, known.map((name) => [name, COLOURS[name].title]), (value) => {
        colour = value;
        view.setParameters({colour: value});
        draw();
      })),
      legend, missing, answer.decoded ? "" : h("p", {class: "note warn"}, "The run's tokenizer was not found on this machine, so ids stand for texts."),
      blocks, detail);
    blocks.addEventListener("pointerover", (event) => show(event.target, answer, detail));
    draw();
    const move = (by) => () => {
      const all = [...blocks.querySelectorAll(".t")];
      const at = all.findIndex((token) => token.classList.contains("chosen"));
      all[at]?.classList.remove("chosen");
      const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
      if (!next) return;
      next.classList.add("chosen");
      next.scrollIntoView({block: "nearest"});
      show(next, answer, detail);
    };
    return {ArrowRight: move(1), ArrowLeft: move(-1)};
  };

  const largest = (values) => (values || []).reduce((most, x) => Math.max(most, Math.abs(x ?? 0)), 0) || 1;

  const block = (segment, number, answer, colour) => {
    const scale = largest(segment.advantage);
    const trained = segment.mask.reduce((sum, x) => sum + x, 0);
    const title = [answer.segments.length > 1 ? `Segment ${number + 1}` : "", segment.role, `${view.plural(segment.ids.length, "token")}, ${view.count(trained)} trained`,
      segment.parent === null ? "" : `continues segment ${segment.parent + 1} after ${view.plural(segment.offset, "token")}`].filter(Boolean).join(" · ");
    const text = h("div", {class: "tokens"});
    const fill = (from, to) => {
      const made = document.createDocumentFragment();
      let turn = from ? segment.turn[from - 1] : -1;
      for (let i = from; i < to; i++) {
        if (segment.turn[i] !== turn) {
          turn = segment.turn[i];
          made.append(h("span", {class: "turn"}, `turn ${turn + 1}`));
        }
        const token = h("span", {class: `t ${COLOURS[colour].level(segment, i, scale)}`, "data-at": `${number} ${i}`});
        visible(token, segment.text[i]);
        made.append(token);
      }
      text.append(made);
      if (to < segment.ids.length) {
        const more = h("button", {class: "more", onclick: () => { more.remove(); fill(to, Math.min(segment.ids.length, to + 5 * MOST)); }},
          `show more (${view.count(segment.ids.length - to)} tokens are left)`);
        text.append(more);
      }
    };
    fill(0, Math.min(segment.ids.length, MOST));
    return h("section", {}, h("h3", {}, view.line(title, 200)), text);
  };

  // A token's text; an empty one and a line break are visible.
  const visible = (token, text) => {
    if (text === "") { token.append("·"); token.classList.add("part"); return; }
    const lines = text.split("\n");
    lines.forEach((line, i) => {
      if (i) token.append("⏎\n");
      view.appendText(token, line.length > 500 ? `${line.slice(0, 500)}…` : line);
    });
  };

  const show = (target, answer, detail) => {
    const token = target.closest?.(".t");
    if (!token) return;
    const [number, i] = token.dataset.at.split(" ").map(Number);
    const segment = answer.segments[number];
    const rows = [["text", view.line(JSON.stringify(segment.text[i]), 80)], ["id", segment.ids[i]], ["position", i], ["trained", segment.mask[i] ? "yes" : "no"]];
    if (segment.mask[i]) {
      rows.push(["policy version", segment.version[i]]);
      for (const [key, name] of Object.entries(NAMES)) if (segment[key]) rows.push([name, view.number(segment[key][i], 4)]);
      rows.push(["probability", view.number(Math.exp(segment.logprob[i]), 4)]);
    }
    detail.replaceChildren(h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
  };
})();
