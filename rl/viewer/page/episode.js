// One episode: its turns, tool calls and rewards; and the members of its group side by side.
"use strict";

(() => {
  const {h} = view;

  view.episodePage = async (main, [run, file, line], parameters) => {
    const episode = await view.api("episode", {run, file, line});
    const {row} = episode;
    const body = h("div", {class: "episode"});
    const tab = parameters.show || "turns";
    const tabs = h("nav", {class: "tabs"},
      [["turns", "Conversation"], ["tokens", "Tokens"], ["group", `Group of ${episode.group.length}`]].map(([key, name]) =>
        h("a", {href: view.episodeLink(run, row, key === "turns" ? {} : {show: key}), class: tab === key ? "chosen" : ""}, name)));
    main.append(head(run, episode), tabs, body);
    let keys = {};
    if (tab === "tokens") keys = await view.tokensPart(body, run, row, parameters);
    else if (tab === "group") await group(body, run, row);
    else conversation(body, episode);
    const step = (by) => () => { location.hash = view.episodeLink(run, {file: row.file, line: Number(row.line) + by}, parameters); };
    Object.assign(keys, {t: () => { location.hash = view.episodeLink(run, row, tab === "tokens" ? {} : {show: "tokens"}); },
      g: () => { location.hash = view.episodeLink(run, row, tab === "group" ? {} : {show: "group"}); }});
    if (episode.previous) keys["["] = step(-1);
    if (episode.next) keys["]"] = step(1);
    return {title: `${row.file}/${row.line}`, run, tab: "episodes", crumbs: [[`${row.file}/${row.line}`, ""]], keys};
  };

  // ---- the head -----------------------------------------------------------------------------

  const head = (run, episode) => {
    const {row} = episode;
    const components = {};
    for (const turn of episode.turns) {
      for (const [name, value] of Object.entries(turn.rewards || {})) components[name] = (components[name] || 0) + value;
    }
    const last = episode.turns[episode.turns.length - 1];
    return h("div", {class: "episode-head"},
      h("h1", {}, view.line(row.env, 60), h("span", {class: "quiet"}, ` task ${row.task}`)),
      h("p", {class: "lead"}, `${view.kindName(row)} · member ${row.member} of ${episode.group.length} · `,
        h("span", {class: view.endingClass(episode.ending)}, view.line(episode.ending.replaceAll("_", " "), 40)),
        row.attempts > 1 ? ` · ${row.attempts} attempts` : "",
        " · ", h("a", {href: view.link(["run", run, "episodes"], {task: row.task, env: row.env})}, "all episodes of this task")),
      episode.failure ? h("p", {class: "note bad"}, view.text(episode.failure)) : "",
      h("dl", {class: "facts"},
        view.fact("Reward", h("b", {}, view.number(episode.reward, 2))),
        Object.keys(components).length > 1 || Object.keys(episode.shaping || {}).length ? view.fact("By component", parts(components)) : "",
        Object.keys(episode.shaping || {}).length ? view.fact("Shaping", parts(episode.shaping)) : "",
        row.advantage === null ? "" : view.fact("Advantage", h("b", {class: row.advantage > 0 ? "plus" : row.advantage < 0 ? "minus" : ""}, view.signed(row.advantage))),
        episode.outcome === null || episode.outcome === undefined ? "" : view.fact("Success", h("b", {}, view.number(episode.outcome, 2))),
        last && Object.keys(last.scores || {}).length ? view.fact("Scores", parts(last.scores)) : "",
        view.fact("Turns", h("b", {}, String(row.turns))),
        view.fact("Sampled tokens", h("b", {}, view.count(row.sampled)), h("span", {class: "quiet"}, ` of ${view.count(row.tokens)}`)),
        view.fact("Time", h("b", {}, view.seconds(row.generate_s + row.env_s)), h("span", {class: "quiet"}, ` ${view.seconds(row.env_s)} in the environment`))));
  };
  const parts = (values) => h("span", {class: "parts"}, Object.entries(values).map(([name, value], i) =>
    [i ? ", " : "", view.line(name, 40), " ", h("b", {}, view.number(value, 2))]));

  // ---- the conversation ---------------------------------------------------------------------

  const conversation = (box, episode) => {
    if (episode.system) box.append(h("details", {class: "message system"}, h("summary", {}, "System message"), view.text(episode.system)));
    const pictures = episode.pictures || [];
    box.append(message("environment", "Environment", "", episode.observation, pictures[0]));
    const early = (episode.calls || []).filter((call) => call.turn === 0);
    view.append(box, [early.map(tool)]);
    episode.turns.forEach((turn, number) => {
      const partner = turn.finish_reason === "partner";
      const meta = [partner ? "played by the partner, not trained" : view.plural(turn.num_tokens, "token"), view.seconds(turn.generate_s), ["stop_token", "stop_string", "partner"].includes(turn.finish_reason) ? "" : (turn.finish_reason || "").replaceAll("_", " ")];
      box.append(message(partner ? "environment" : "agent", turn.role || "Agent", `turn ${number + 1} · ${meta.filter(Boolean).join(" · ")}`, turn.action));
      view.append(box, [(turn.tool_calls || []).map(tool)]);
      if (turn.observation || turn.env_s >= 0.01 || Object.keys(turn.rewards || {}).length || pictures[number + 1]) {
        const paid = Object.entries(turn.rewards || {});
        const scores = Object.entries(turn.scores || {}).map(([name, value]) => `${name} ${view.number(value, 2)}`);
        const note = [view.seconds(turn.env_s), ...paid.map(([name, value]) => `reward ${name} ${view.number(value, 2)}`), ...scores,
          turn.value === null || turn.value === undefined ? "" : `value ${view.number(turn.value, 2)}`];
        box.append(message("environment", "Environment", note.filter(Boolean).join(" · "), turn.observation, pictures[number + 1]));
      }
    });
    if (!episode.turns.length) box.append(view.empty("The episode has no turn."));
  };

  const message = (kind, who, note, text, picture) => h("article", {class: `message ${kind}`},
    h("header", {}, h("b", {}, view.line(who, 40)), h("span", {class: "meta"}, view.line(note, 300))),
    picture ? drawn(picture) : "",
    picture && text ? h("details", {}, h("summary", {}, "as text"), view.text(text)) : text ? view.text(text) : "");

  const tool = (call) => {
    const brief = JSON.stringify(call.arguments) || "";
    const measured = [typeof call.seconds === "number" ? view.seconds(call.seconds) : "", call.retries ? `${view.count(call.retries)} ${call.retries === 1 ? "retry" : "retries"}` : "", call.status];
    return h("details", {class: `tool ${call.error ? "failed" : ""}`},
      h("summary", {}, h("b", {}, view.line(call.name || call.service, 60)), " ", h("code", {}, view.line(brief, 90)), " ",
        h("span", {class: "meta"}, view.line(measured.filter(Boolean).join(" · "), 120)),
        h("span", {class: call.error ? "bad" : "quiet"}, " → ", view.line(call.error || call.text, 90))),
      h("h4", {}, "Arguments"), view.text(JSON.stringify(call.arguments, null, 2), {class: "code"}),
      call.error ? [h("h4", {class: "bad"}, "Error"), view.text(call.error, {class: "bad"})] : "",
      h("h4", {}, "Result", call.cost ? ` · cost ${view.number(call.cost)}` : ""), view.text(call.text, {class: "code"}));
  };

  // What an environment draws of itself: a grid or a table of texts, or lines of a difference.
  const drawn = (picture) => {
    if (picture.kind === "diff") {
      return h("div", {class: "picture diff"}, picture.rows.map(([cell]) =>
        h("div", {class: cell.mark}, view.appendText(h("span", {}), `${{added: "+", removed: "\u2212"}[cell.mark] || " "} ${cell.text}`))));
    }
    return h("div", {class: "scroll"}, h("table", {class: `picture ${picture.kind}`}, h("tbody", {}, picture.rows.map((cells) =>
      h("tr", {}, cells.map((cell) => h("td", {class: cell.mark || ""}, view.line(cell.text, 200))))))));
  };

  // ---- the group ----------------------------------------------------------------------------

  const group = async (box, run, row) => {
    const {members} = await view.api("group", {run, file: row.file, line: row.line});
    const rewards = members.filter((m) => !m.failure).map((m) => m.shaped_reward);
    const mean = rewards.reduce((sum, x) => sum + x, 0) / (rewards.length || 1);
    const equal = rewards.length > 1 && Math.max(...rewards) - Math.min(...rewards) < 1e-9;
    box.append(h("p", {class: equal ? "note warn" : "hint"}, equal
      ? "All rewards of this group are equal: it gives no gradient."
      : `Mean reward ${view.number(mean, 2)}. Members with a higher one are reinforced.`));
    if (members[0]?.observation) box.append(h("details", {class: "message"}, h("summary", {}, "The task"), view.text(members[0].observation)));
    box.append(side(members.map((member) => column(run, member, `member ${member.row.member}`, member.row.line === row.line))));
  };

  const side = (columns) => h("div", {class: "side"}, columns);
  const column = (run, episode, title, chosen) => {
    const inner = h("div", {class: "inner"});
    conversation(inner, {...episode, system: null, observation: "", pictures: episode.pictures ? [null, ...episode.pictures.slice(1)] : []});
    const {row} = episode;
    inner.firstElementChild?.remove();
    return h("section", {class: `column ${chosen ? "chosen" : ""}`},
      h("header", {}, h("a", {href: view.episodeLink(run, row)}, title),
        h("span", {}, "reward ", h("b", {}, view.number(episode.reward, 2))),
        row.advantage === null ? "" : h("span", {}, "advantage ", h("b", {class: row.advantage > 0 ? "plus" : row.advantage < 0 ? "minus" : ""}, view.signed(row.advantage))),
        h("span", {class: `quiet ${view.endingClass(episode.ending)}`}, view.line(episode.ending.replaceAll("_", " "), 30)),
        h("span", {class: "quiet"}, view.plural(row.sampled, "token"))),
      inner);
  };
  view.column = column;
  view.side = side;
})();
