// The timeline of one step: zoom, pan, choose, search, highlight, and a link to what is in sight.
// `timelines` holds one entry per timeline that was drawn; its `state()` is what a test reads.
const timelines = [];
(() => {
  const SHORTEST = 20;
  const OPEN_ROWS = 26;
  const LINK = /^#(.+)@(\d+)-(\d+)$/;

  const made = (box) => {
    const style = JSON.parse(box.querySelector("script").textContent);
    const from = documents.get();
    const drawing = from.drawings.one_step;
    const step = drawing.headline.find((each) => each.metric === "step")?.value ?? -1;
    const computing = new Map(
      (from.analyses.timeline?.rows ?? []).filter((row) => row.step === step).map((row) => [row.rank, row.compute_ns]),
    );
    const model = timeline.model(drawing, computing);
    const painter = timelinePaint.painter(model, style);
    const [pane, tall, canvas, overview, said, tip, found, field, order, fold] = [
      ".timeline-view", ".timeline-tall", ".timeline-view canvas", ".timeline-overview", ".timeline-said",
      ".timeline-tip", ".timeline-found", "input", "select", "[data-do=fold]",
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
    const choose = (piece) => {
      shown.chosen = piece;
      tip.hidden = true;
      if (piece < 0) {
        said.replaceChildren();
      } else {
        const [title, rest] = written(piece);
        said.replaceChildren(element("b", title), rest);
      }
      if (piece >= 0) reveal(piece);
      plan();
    };
    const firstInSight = () => {
      for (const device of devices) {
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
      const ranges = devices.flatMap((device) => [
        ...(device.idle[1] > device.idle[0] ? [device.idle] : []), ...device.rows.map((row) => [row.first, row.last]),
      ]);
      const here = ranges.findIndex(([first, last]) => shown.chosen >= first && shown.chosen < last);
      const next = ranges[here + by];
      if (!next) return undefined;
      const middle = (Math.max(model.start[shown.chosen], view.start) + Math.min(model.end[shown.chosen], view.end)) / 2;
      return choose(model.pieceAt(...next, middle, Infinity));
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

    const acts = {
      in: () => zoom(0.5),
      out: () => zoom(2),
      fit: () => show(whole.start, whole.end),
      fold: () => {
        const isOpen = open.size > 0;
        open.clear();
        if (!isOpen) devices.forEach((device) => open.add(device));
        arrange();
      },
    };
    const keys = {
      "+": acts.in, "=": acts.in, "-": acts.out, _: acts.out, Home: acts.fit,
      ArrowLeft: (event) => (event.shiftKey ? along(-1) : pan(-0.25)),
      ArrowRight: (event) => (event.shiftKey ? along(1) : pan(0.25)),
      n: () => along(1), p: () => along(-1), ArrowUp: () => across(-1), ArrowDown: () => across(1),
      Enter: () => (shown.chosen < 0 ? choose(firstInSight())
        : show(model.start[shown.chosen] - 0.1 * (model.end[shown.chosen] - model.start[shown.chosen]),
          model.end[shown.chosen] + 0.1 * (model.end[shown.chosen] - model.start[shown.chosen]))),
      Escape: () => choose(-1),
    };

    box.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button?.dataset.do) acts[button.dataset.do]();
      if (button && "component" in button.dataset) highlight(button);
    });
    field.addEventListener("input", search);
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") nextHit(); });
    order.addEventListener("change", () => {
      const sign = order.value === "least" ? 1 : -1;
      devices = [...model.devices];
      if (order.value !== "rank") devices.sort((a, b) => sign * (a.compute - b.compute));
      pane.scrollTop = 0;
      arrange();
    });
    pane.addEventListener("keydown", (event) => {
      const act = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
      if (!act) return;
      event.preventDefault();
      act(event);
    });
    pane.addEventListener("scroll", plan);
    pane.addEventListener("wheel", (event) => {
      const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      const isMine = event.ctrlKey || event.metaKey || pane.contains(document.activeElement);
      if (!isSideways && !isMine) return;
      event.preventDefault();
      const by = event.deltaMode === 1 ? 33 : 1;
      if (isSideways) pan(((event.deltaX || event.deltaY) * by) / plotWidth());
      else zoom(1.0015 ** (event.deltaY * by), Math.min(Math.max(stampAt(event.offsetX), view.start), view.end));
    }, { passive: false });

    // Dragging chooses a stretch to zoom into; with Shift, or with a finger, it moves the picture.
    let grip = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 1) return;
      const isMove = event.shiftKey || event.button === 1 || event.pointerType === "touch";
      grip = { x: event.offsetX, y: event.offsetY, isMove, isFar: false, start: view.start, end: view.end };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const { offsetX: x, offsetY: y } = event;
      if (!grip) return point(pieceAt(x, y), x, y);
      grip.isFar ||= Math.abs(x - grip.x) > 4;
      if (!grip.isFar || grip.x < gutter()) return undefined;
      tip.hidden = true;
      if (grip.isMove) {
        const by = ((grip.x - x) / plotWidth()) * (grip.end - grip.start);
        const kept = Math.min(Math.max(by, -grip.start), whole.end - grip.end);
        show(grip.start + kept, grip.end + kept);
      } else {
        const until = Math.min(Math.max(x, gutter()), width());
        shown.drag = [stampAt(grip.x), stampAt(until)];
        plan();
      }
      return undefined;
    });
    canvas.addEventListener("pointerup", (event) => {
      const { drag } = shown;
      const was = grip;
      [grip, shown.drag] = [null, null];
      if (drag) return show(Math.min(...drag), Math.max(...drag));
      if (!was || was.isFar) return plan();
      const band = bandAt(event.offsetY);
      if (band && event.offsetX < gutter() && !band.row) {
        if (open.has(band.device)) open.delete(band.device);
        else open.add(band.device);
        return arrange();
      }
      const piece = pieceAt(event.offsetX, event.offsetY);
      choose(piece);
      return point(piece, event.offsetX, event.offsetY);
    });
    canvas.addEventListener("pointercancel", () => { [grip, shown.drag] = [null, null]; plan(); });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("dblclick", acts.fit);
    overview.addEventListener("pointerdown", (event) => overview.setPointerCapture(event.pointerId));
    for (const kind of ["pointerdown", "pointermove"]) {
      overview.addEventListener(kind, (event) => {
        if (!event.buttons) return;
        const at = ((event.offsetX - gutter()) / plotWidth()) * whole.end;
        const length = view.end - view.start;
        const start = Math.min(Math.max(at - length / 2, 0), whole.end - length);
        show(start, start + length);
      });
    }

    new ResizeObserver(plan).observe(pane);
    theme.onChange(plan);
    addEventListener("beforeprint", () => paint(true));
    addEventListener("afterprint", plan);
    const follow = () => {
      const [, section, start, end] = LINK.exec(location.hash) ?? [];
      if (section === style.section && Number(end) > Number(start)) show(Number(start), Number(end), false);
    };
    addEventListener("hashchange", follow);
    follow();
    arrange();
    paint();
    timelines.push({
      state: () => ({
        ...view, chosen: shown.chosen, rows: bands.length, pieces: model.pieces, gutter: gutter(),
        bands: bands.map((band) => ({ top: band.top + timelinePaint.AXIS - pane.scrollTop, device: band.device.name, lane: band.row?.name ?? null })),
        hits: shown.hits && { count: shown.hits.count, busy: shown.hits.busy },
      }),
      described: (piece) => model.described(piece),
      paint,
      show,
    });
  };

  const draw = (box) => {
    if (box.dataset.drawn) return;
    try {
      made(box);
    } catch (error) {
      box.classList.add("failed");
      box.textContent = `This browser cannot draw the timeline (${error.message}). The table holds its figures.`;
    }
  };

  const boxes = [...document.querySelectorAll(".timeline")];
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "300px" });
  boxes.forEach((box) => near.observe(box));
  addEventListener("beforeprint", () => boxes.forEach(draw));

  // A link with a stretch of time names no element: the section is found here.
  const [, section] = LINK.exec(location.hash) ?? [];
  if (section) {
    const linked = boxes.find((box) => document.getElementById(section)?.contains(box));
    if (linked) {
      draw(linked);
      linked.scrollIntoView({ block: "center", behavior: "instant" });
    }
  }
  timelines.drawAll = () => boxes.forEach(draw);
})();
