// What a piece of a timeline is, in words: beside the pointer, and below for those who read aloud.
const timelineTip = ({ box, model, style, pane }) => {
  const [said, tip] = [".timeline-said", ".timeline-tip"].map((selector) => box.querySelector(selector));

  const lines = (piece) => {
    const is = model.described(piece);
    const isIdle = is.kind === "idle";
    const rows = [
      [isIdle ? "nothing runs" : style.components[is.component].name, isIdle ? `cause: ${is.op}` : is.phase === "other" ? "" : is.phase],
      ["length", timeline.time(is.duration_ns)],
      ["starts at", timeline.time(is.start_ns)],
      ["on", `${is.where} (${is.place})`],
    ];
    if (is.count > 1) {
      rows.push(["merged", `${timeline.grouped(is.count, 0)} pieces, busy ${timeline.time(is.busy_ns)}, of it ${timeline.time(is.shown_ns)} this op`]);
    }
    if (is.wait_ns >= 0) rows.push([`waits for peers${is.count > 1 ? ", where known" : ""}`, timeline.time(is.wait_ns)]);
    if (is.kernel && is.kernel !== is.op) rows.push(["kernel", is.kernel]);
    if (is.scope) rows.push(["scope", is.scope]);
    if (is.source) rows.push(["source", is.source]);
    return { title: isIdle ? "Idle" : is.op || "unnamed", rows };
  };
  const written = (piece) => {
    const { title, rows } = lines(piece);
    return [title, `: ${rows.map(([name, value]) => `${name} ${value}`.trim()).join("; ")}`];
  };
  const element = (name, words) => {
    const made = document.createElement(name);
    made.textContent = words;
    return made;
  };
  const point = (piece, x, y) => {
    if (piece < 0) {
      tip.hidden = true;
      return;
    }
    const { title, rows } = lines(piece);
    const list = document.createElement("dl");
    for (const [name, value] of rows) list.append(element("dt", name), element("dd", value));
    tip.replaceChildren(element("p", title), list);
    tip.hidden = false;
    const room = box.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(Math.min(x + 14, room), 0)}px`;
    const above = y - tip.offsetHeight - 12;
    const isTop = pane.getBoundingClientRect().top + y > window.innerHeight / 2 && above + pane.offsetTop > 0;
    tip.style.top = `${pane.offsetTop + (isTop ? above : y + 16)}px`;
  };
  const hide = () => { tip.hidden = true; };
  const say = (piece) => {
    if (piece < 0) {
      said.replaceChildren();
      return;
    }
    const [title, rest] = written(piece);
    said.replaceChildren(element("b", title), rest);
  };

  return { point, hide, say };
};
