// Which piece of a timeline is chosen: from piece to piece, from lane to lane, to what was found.
const timelineWalk = ({ box, model, view, shown, plan, show, reveal, devices }, tip) => {
  const [found, field] = [".timeline-found", "input"].map((selector) => box.querySelector(selector));

  const choose = (piece) => {
    shown.chosen = piece;
    tip.hide();
    tip.say(piece);
    if (piece >= 0) reveal(piece);
    plan();
  };
  const firstInSight = () => {
    for (const device of devices()) {
      for (const row of device.rows) {
        const piece = model.firstBehind(row.first, row.last, view.start);
        if (piece < row.last && model.start[piece] < view.end) return piece;
      }
    }
    return -1;
  };
  const along = (by) => {
    if (shown.chosen < 0) return choose(firstInSight());
    const { device, row } = model.rowOf(shown.chosen);
    const [first, last] = row ? [row.first, row.last] : device.idle;
    return choose(Math.min(Math.max(shown.chosen + by, first), last - 1));
  };
  const across = (by) => {
    if (shown.chosen < 0) return choose(firstInSight());
    const ranges = devices().flatMap((device) => [
      ...(device.idle[1] > device.idle[0] ? [device.idle] : []), ...device.rows.map((row) => [row.first, row.last]),
    ]);
    const here = ranges.findIndex(([first, last]) => shown.chosen >= first && shown.chosen < last);
    const next = ranges[here + by];
    if (!next) return undefined;
    const middle = (Math.max(model.start[shown.chosen], view.start) + Math.min(model.end[shown.chosen], view.end)) / 2;
    return choose(model.pieceAt(...next, middle, Infinity));
  };
  const enlarge = () => {
    if (shown.chosen < 0) return choose(firstInSight());
    const [start, end] = [model.start[shown.chosen], model.end[shown.chosen]];
    return show(start - 0.1 * (end - start), end + 0.1 * (end - start));
  };

  const search = () => {
    shown.hits = model.search(field.value);
    const { hits } = shown;
    found.textContent = hits === null ? ""
      : hits.count === 0 ? "nothing found" : `${timeline.grouped(hits.count, 0)} piece${hits.count === 1 ? "" : "s"}, ${timeline.time(hits.busy)} on all devices`;
    plan();
  };
  const nextHit = () => {
    const { hits } = shown;
    if (!hits?.count) return;
    for (let step = 1; step <= model.pieces; step++) {
      const piece = (Math.max(shown.chosen, -1) + step) % model.pieces;
      if (hits.hit[piece]) return choose(piece);
    }
  };
  const highlight = (button) => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    for (const other of box.querySelectorAll("[data-component]")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(isOn));
    shown.component = isOn ? button.dataset.component : null;
    plan();
  };

  return { choose, along, across, enlarge, search, nextHit, highlight };
};
