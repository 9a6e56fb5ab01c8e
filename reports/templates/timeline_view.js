// What of a timeline is in sight: the stretch of time, the devices in their order, what is chosen.
// The other files of the timeline ask it where something is, and tell it what to show.
const timelineView = (box, model, style) => {
  const SHORTEST = 20;
  const OPEN_ROWS = 26;
  const painter = timelinePaint.painter(model, style);
  const [pane, tall, canvas, overview, fold] = [
    ".timeline-view", ".timeline-tall", ".timeline-view canvas", ".timeline-overview", "[data-do=fold]",
  ].map((selector) => box.querySelector(selector));
  const whole = { start: 0, end: model.duration };
  const view = { ...whole };
  const open = new Set(model.lanes + model.devices.length <= OPEN_ROWS ? model.devices : []);
  const shown = { chosen: -1, hits: null, component: null, drag: null };
  let devices = [...model.devices];
  let { bands, height } = timelinePaint.laidOut(devices, (device) => open.has(device));
  let isPlanned = false;
  let linking = 0;

  const gutter = () => (pane.clientWidth < 620 ? 86 : 210);
  const width = () => pane.clientWidth;
  const high = () => Math.min(timelinePaint.AXIS + height, 544);
  const plotWidth = () => Math.max(width() - gutter(), 1);
  const isLit = (piece) =>
    (shown.component === null || model.components[model.component[piece]] === shown.component)
    && (shown.hits === null || shown.hits.hit[piece] === 1);
  const stampAt = (x) => view.start + ((x - gutter()) / plotWidth()) * (view.end - view.start);

  const paint = (isPrinted = false) => {
    isPlanned = false;
    pane.style.height = `${high()}px`;
    tall.style.height = `${timelinePaint.AXIS + height}px`;
    const state = {
      width: width(), height: high(), scroll: pane.scrollTop, gutter: gutter(), bands, view, isLit,
      chosen: shown.chosen, drag: shown.drag,
    };
    painter.main(canvas, state, isPrinted);
    painter.overview(overview, state, isPrinted);
    box.dataset.drawn = document.documentElement.dataset.theme;
  };
  const plan = () => {
    if (isPlanned) return;
    isPlanned = true;
    requestAnimationFrame(() => paint());
  };
  const arrange = () => {
    ({ bands, height } = timelinePaint.laidOut(devices, (device) => open.has(device)));
    fold.setAttribute("aria-pressed", String(open.size > 0));
    plan();
  };

  // The address holds what is in sight, so that it can be sent to somebody.
  const link = () => {
    clearTimeout(linking);
    linking = setTimeout(() => {
      const isWhole = view.start === whole.start && view.end === whole.end;
      const at = isWhole ? "" : `@${Math.round(view.start)}-${Math.round(view.end)}`;
      history.replaceState(null, "", `#${style.section}${at}`);
    }, 200);
  };
  const show = (start, end, isLinked = true) => {
    const length = Math.min(Math.max(end - start, SHORTEST), whole.end);
    const middle = (start + end) / 2;
    view.start = Math.min(Math.max(middle - length / 2, 0), whole.end - length);
    view.end = view.start + length;
    plan();
    if (isLinked) link();
  };
  const zoom = (times, at = (view.start + view.end) / 2) =>
    show(at - (at - view.start) * times, at + (view.end - at) * times);
  const pan = (share) => {
    const by = share * (view.end - view.start);
    const kept = Math.min(Math.max(by, -view.start), whole.end - view.end);
    show(view.start + kept, view.end + kept);
  };

  // Devices: which come first, and whose lanes are seen one by one.
  const sort = (kind) => {
    const sign = kind === "least" ? 1 : -1;
    devices = [...model.devices];
    if (kind !== "rank") devices.sort((a, b) => sign * (a.compute - b.compute));
    pane.scrollTop = 0;
    arrange();
  };
  const toggle = (device) => {
    if (open.has(device)) open.delete(device);
    else open.add(device);
    arrange();
  };
  const toggleAll = () => {
    const isOpen = open.size > 0;
    open.clear();
    if (!isOpen) devices.forEach((device) => open.add(device));
    arrange();
  };

  const bandAt = (y) => {
    const at = y - timelinePaint.AXIS + pane.scrollTop;
    return y < timelinePaint.AXIS ? null : bands.find((band) => at >= band.top && at < band.top + timelinePaint.ROW) ?? null;
  };
  const pieceAt = (x, y) => {
    const band = bandAt(y);
    if (!band || x < gutter()) return -1;
    const near = (1.5 * (view.end - view.start)) / plotWidth();
    const at = stampAt(x);
    if (band.row) return model.pieceAt(band.row.first, band.row.last, at, near);
    if (!band.isOpen) {
      for (const row of [...band.device.rows].reverse()) {
        const piece = model.pieceAt(row.first, row.last, at, near);
        if (piece >= 0) return piece;
      }
    }
    return model.pieceAt(...band.device.idle, at, near);
  };
  const reveal = (piece) => {
    const [start, end] = [model.start[piece], model.end[piece]];
    const length = view.end - view.start;
    if (start < view.start || end > view.end) {
      const wide = Math.max(Math.min(length, whole.end), 1.2 * (end - start));
      show((start + end - wide) / 2, (start + end + wide) / 2);
    }
    const place = model.rowOf(piece);
    const band = bands.find((each) => each.device === place.device && (each.row === place.row || !each.isOpen));
    const room = high() - timelinePaint.AXIS;
    if (band.top < pane.scrollTop) pane.scrollTop = band.top;
    if (band.top + timelinePaint.ROW > pane.scrollTop + room) pane.scrollTop = band.top + timelinePaint.ROW - room;
  };

  return {
    box, model, style, pane, canvas, overview, whole, view, shown,
    gutter, width, plotWidth, stampAt, paint, plan, arrange, show, zoom, pan,
    sort, toggle, toggleAll, bandAt, pieceAt, reveal,
    devices: () => devices,
    bands: () => bands,
  };
};
