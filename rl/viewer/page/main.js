// Chooses the page of a link, keeps it up to date, and handles the keyboard.
"use strict";

(() => {
  const {h} = view;
  const PAGES = {"": view.overviewPage, episodes: view.episodesPage, episode: view.episodePage, timeline: view.timelinePage, compare: view.comparePage};
  const KEYS = [["j  k", "next or previous row"], ["Enter", "open the row"], ["/", "search"], ["[  ]", "previous or next episode"],
    ["←  →", "previous or next token"], ["t", "tokens of the episode"], ["g", "group of the episode"], ["o  e  l  c", "overview, episodes, timeline, compare"], ["u", "up"], ["?", "this help"]];
  const top = document.getElementById("top"), help = document.getElementById("help");
  let current = {}, timer = 0, round = 0;

  const show = async () => {
    const {parts, parameters} = view.place();
    const mine = ++round;
    clearTimeout(timer);
    // A new element: a page that is still loading writes into one that nothing shows.
    const old = document.getElementById("main");
    const main = h("main", {id: "main", tabindex: "-1"});
    let made;
    try {
      if (parts[0] === "run" && parts[1]) {
        const page = PAGES[parts[2] || ""];
        if (!page) throw new Error("this link names no page of the viewer");
        made = await page(main, [parts[1], ...parts.slice(3)], parameters);
      } else made = await view.runsPage(main);
    } catch (error) {
      main.replaceChildren(h("p", {class: "note bad"}, view.line(error.message, 500)), h("p", {}, h("a", {href: "#/"}, "all runs")));
      made = {title: "not found", run: parts[1]};
    }
    if (mine !== round) return;
    const same = old.dataset.place === location.hash.split("?")[0];
    main.dataset.place = location.hash.split("?")[0];
    document.getElementById("main").replaceWith(main);
    if (!same) scrollTo(0, 0);
    current = made;
    document.title = `${view.plain(made.title)} – turnwise`;
    navigation(made);
    made.list?.draw();
    keepFresh(mine);
  };

  const navigation = (page) => {
    const run = page.run;
    const tab = (key, name, ...rest) => h("a", {href: view.runLink(run, ...rest), class: page.tab === key ? "chosen" : ""}, name);
    top.replaceChildren(
      h("a", {class: "brand", href: "#/"}, "turnwise"),
      run ? h("nav", {class: "crumbs"}, h("a", {href: view.runLink(run)}, view.line(run, 48)), (page.crumbs || []).map(([name]) => h("span", {}, view.line(name, 40)))) : "",
      h("span", {class: "grow"}),
      run ? h("nav", {class: "tabs"}, tab("overview", "Overview"), tab("episodes", "Episodes", "episodes"), tab("timeline", "Timeline", "timeline"), view.exported ? "" : tab("compare", "Compare", "compare")) : "",
      h("button", {class: "help", title: "keys ( ? )", "aria-label": "keys", onclick: () => help.showModal()}, "?"));
  };

  // Asks again while the page is in sight.
  const keepFresh = (mine) => {
    if (!current.refresh || view.exported) return;
    timer = setTimeout(async () => {
      if (mine !== round) return;
      if (!document.hidden) {
        try { await current.refresh(); document.body.classList.remove("offline"); }
        catch { document.body.classList.add("offline"); }
      }
      keepFresh(mine);
    }, (current.every || 3) * 1000);
  };

  // ---- keys ---------------------------------------------------------------------------------

  const rows = () => [...document.querySelectorAll("[data-row]")];
  const move = (by) => {
    if (current.list) { current.list.move(by); return; }
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.classList.contains("chosen"));
    all[at]?.classList.remove("chosen");
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    next.classList.add("chosen");
    next.scrollIntoView({block: "nearest"});
  };
  const open = () => current.list ? current.list.open() : document.querySelector("[data-row].chosen")?.click();
  const up = () => {
    const {parts} = view.place();
    location.hash = parts[2] === "episode" ? view.runLink(parts[1], "episodes") : parts[2] ? view.runLink(parts[1]) : "#/";
  };
  const go = (...rest) => () => { if (current.run) location.hash = view.runLink(current.run, ...rest); };
  const ACTIONS = {j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), Enter: open, u: up,
    o: go(), e: go("episodes"), l: go("timeline"), c: go("compare"), "?": () => help.showModal()};

  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape" && typing) { event.target.blur(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.key.startsWith("Arrow") && !current.list && !current.keys?.[event.key]) return;
    if (event.key === "Enter" && event.target.dataset?.row !== undefined) { event.target.click(); return; }
    if (event.key === "Enter" && event.target !== document.body && event.target.tagName !== "DIV" && event.target.id !== "main") return;
    const action = current.keys?.[event.key] || ACTIONS[event.key];
    if (action) { event.preventDefault(); action(); }
  });

  help.append(h("h2", {}, "Keys"), h("table", {}, h("tbody", {}, KEYS.map(([key, text]) => h("tr", {}, h("th", {}, h("kbd", {}, key)), h("td", {}, text))))),
    h("form", {method: "dialog"}, h("button", {}, "close")));
  addEventListener("hashchange", show);
  show();
})();
