document.getElementById("theme").addEventListener("click", theme.toggle);
theme.onChange(figures.redraw);

// Of several runs the sections are folded away; whatever leads to one unfolds it.
const unfold = (place) => {
  for (let fold = place?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
};
(() => {
  const named = (hash) => {
    // An address that somebody typed may hold a bare %: it is taken as it stands.
    try { return decodeURIComponent(hash.slice(1).split("?")[0]); } catch { return hash.slice(1); }
  };
  const follow = (hash) => {
    const place = document.getElementById(named(hash));
    const isFolded = place?.closest("details:not([open])");
    unfold(place);
    if (isFolded) place.scrollIntoView();
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link) follow(link.hash);
  });
  addEventListener("hashchange", () => follow(location.hash));
  if (location.hash) follow(location.hash);
})();

// The list of sections: a menu where the screen is narrow, and always where the reader is.
(() => {
  const menu = document.getElementById("menu");
  const list = document.getElementById("sections");
  const links = [...list.querySelectorAll("a[href^='#']")];
  const expand = (isOpen) => menu.setAttribute("aria-expanded", String(isOpen));
  menu.addEventListener("click", () => expand(menu.getAttribute("aria-expanded") !== "true"));
  list.addEventListener("click", (event) => { if (event.target.closest("a")) expand(false); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || menu.getAttribute("aria-expanded") !== "true") return;
    expand(false);
    menu.focus();
  });

  const places = links.map((link) => [link, document.getElementById(link.hash.slice(1))]).filter(([, place]) => place);
  const mark = () => {
    const line = innerHeight / 3;
    const isAtEnd = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
    const seen = places.filter(([, place]) => !place.parentElement.closest("details:not([open])"));
    const passed = seen.filter(([, place]) => isAtEnd || place.getBoundingClientRect().top <= line);
    const last = (passed.at(-1) ?? places[0])?.[0];
    // where the entry is folded away, that of its run stands for it
    const here = last?.closest("details:not([open])")?.parentElement.querySelector("a") ?? last;
    for (const link of links) {
      if (link === here) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
    }
  };
  let isWaiting = false;
  addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => { isWaiting = false; mark(); });
  }, { passive: true });
  mark();
})();

// One search for all tables: the list of sections says where the matches are.
(() => {
  const field = document.getElementById("find");
  if (!field) return;
  const told = document.getElementById("found");
  const links = [...document.querySelectorAll("#sections a[href^='#']")];

  const find = (wanted) => {
    const matches = tables.find(wanted);
    let total = 0;
    for (const count of matches.values()) total += count;
    for (const link of links) {
      link.querySelector(".matches")?.remove();
      const place = document.getElementById(link.hash.slice(1));
      if (!place?.classList.contains("question")) continue;
      let count = 0;
      for (const [box, found] of matches) if (place.contains(box)) count += found;
      if (!count) continue;
      const badge = document.createElement("span");
      badge.className = "matches";
      badge.textContent = `${count}`;
      badge.title = `${count} matching row${count === 1 ? "" : "s"}`;
      link.append(" ", badge);
    }
    const said = total ? `${total} matching row${total === 1 ? "" : "s"}; Enter leads to the first` : "no row matches";
    told.textContent = wanted.trim() ? said : "";
    return matches;
  };

  field.addEventListener("input", () => find(field.value));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { field.value = ""; find(""); }
    if (event.key !== "Enter" || !field.value.trim()) return;
    const first = [...find(field.value)].find(([, count]) => count)?.[0];
    if (!first) return;
    unfold(first);
    first.scrollIntoView({ block: "center" });
    first.querySelector(".scroll").focus({ preventScroll: true });
  });
})();

// `#ops?find=all-to-all` leads to a section and filters its table.
(() => {
  // An address that somebody typed may hold a bare %: it is taken as it stands.
  const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
  const follow = () => {
    const [name, query] = location.hash.slice(1).split("?find=").map(decoded);
    const place = query === undefined ? null : document.getElementById(name);
    if (!place) return;
    unfold(place);
    tables.filterWithin(place, query);
    place.scrollIntoView();
    (place.querySelector(".scroll") ?? place).focus({ preventScroll: true });
  };
  addEventListener("hashchange", follow);
  follow();
})();

// Paper is light and has everything on it: figures are drawn and details opened before printing.
(() => {
  const root = document.documentElement;
  let before = null;
  const prepare = () => {
    before = { theme: root.dataset.theme, closed: [...document.querySelectorAll("details:not([open])")] };
    before.closed.forEach((details) => { details.open = true; });
    root.dataset.theme = "light";
    root.classList.add("on-paper");  // as narrow as a sheet, before figures are drawn to fit
  };
  const restore = () => {
    if (!before) return;
    before.closed.forEach((details) => { details.open = false; });
    root.dataset.theme = before.theme;
    root.classList.remove("on-paper");
    before = null;
    figures.redraw(true);
  };
  const paper = async () => {
    if (before) return;
    prepare();
    await figures.redraw(true);
    await figures.drawAll();
  };
  const printed = async () => { await paper(); print(); };
  document.getElementById("print").addEventListener("click", printed);
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "p" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
    event.preventDefault();
    printed();
  });
  addEventListener("beforeprint", paper);
  addEventListener("afterprint", restore);
})();
