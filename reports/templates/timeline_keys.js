// Buttons, fields and keys of a timeline.
const timelineKeys = (stage, { choose, along, across, enlarge, search, nextHit, highlight }) => {
  const { box, pane, whole, show, zoom, pan, sort, toggleAll } = stage;
  const [field, order] = ["input", "select"].map((selector) => box.querySelector(selector));

  const acts = {
    in: () => zoom(0.5),
    out: () => zoom(2),
    fit: () => show(whole.start, whole.end),
    fold: toggleAll,
  };
  const keys = {
    "+": acts.in, "=": acts.in, "-": acts.out, _: acts.out, Home: acts.fit,
    ArrowLeft: (event) => (event.shiftKey ? along(-1) : pan(-0.25)),
    ArrowRight: (event) => (event.shiftKey ? along(1) : pan(0.25)),
    n: () => along(1), p: () => along(-1), ArrowUp: () => across(-1), ArrowDown: () => across(1),
    Enter: enlarge,
    Escape: () => choose(-1),
  };

  box.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.do) acts[button.dataset.do]();
    if (button && "component" in button.dataset) highlight(button);
  });
  field.addEventListener("input", search);
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") nextHit(); });
  order.addEventListener("change", () => sort(order.value));
  pane.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act(event);
  });
};
