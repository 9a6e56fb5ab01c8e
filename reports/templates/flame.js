// Flame figures by keyboard: arrows walk the tree, Enter gives a part the width, Escape goes back.
(() => {
  const lines = new WeakMap();
  const plain = (text) => new DOMParser().parseFromString(text.replaceAll("<br>", ", "), "text/html").body.textContent;

  // Each node's children, the largest first; parents come before their children in the data.
  const childrenOf = (tree) => {
    const totals = [...tree.values];
    const place = new Map(tree.ids.map((id, at) => [id, at]));
    for (let at = totals.length - 1; at > 0; at--) totals[place.get(tree.parents[at])] += totals[at];
    const children = new Map(tree.ids.map((id) => [id, []]));
    tree.ids.forEach((id, at) => children.get(tree.parents[at])?.push(id));
    for (const ids of children.values()) ids.sort((a, b) => totals[place.get(b)] - totals[place.get(a)]);
    return { place, children };
  };

  const next = (tree, { place, children }, id, key) => {
    const parent = tree.parents[place.get(id)];
    if (key === "ArrowUp") return parent || id;
    if (key === "ArrowDown") return children.get(id)[0] ?? id;
    const beside = children.get(parent) ?? [id];
    return beside[beside.indexOf(id) + (key === "ArrowRight" ? 1 : -1)] ?? id;
  };

  const say = (plot, text) => {
    if (!lines.has(plot)) {
      const line = document.createElement("p");
      line.className = "fine";
      line.setAttribute("role", "status");
      plot.after(line);
      lines.set(plot, line);
    }
    lines.get(plot).textContent = text;
  };

  document.addEventListener("keydown", (event) => {
    const plot = event.target;
    const tree = plot.data?.[0];
    if (tree?.type !== "icicle" || !["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Enter", "Escape"].includes(event.key)) return;
    event.preventDefault();
    const known = childrenOf(tree);
    const at = known.place.has(plot.dataset.node) ? plot.dataset.node : tree.ids[0];
    const id = event.key.startsWith("Arrow") ? next(tree, known, at, event.key) : event.key === "Escape" ? tree.ids[0] : at;
    plot.dataset.node = id;
    if (!event.key.startsWith("Arrow")) window.Plotly.restyle(plot, { level: id });
    for (const slice of plot.querySelectorAll("g.slice")) slice.classList.toggle("at", slice.__data__?.data?.data?.id === id);
    say(plot, tree.customdata[known.place.get(id)].filter(Boolean).map(plain).join(" · "));
  });
})();
